"""The verdict codes: title, meaning and what to do next, as records. ``fiafuzz explain F201`` prints one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class VerdictCode:
    """One verdict code. ``severity`` is "error" for findings and "note" for information that never fails a run."""

    code: str
    title: str
    meaning: str
    advice: str
    severity: str = "error"


def _records(*records: VerdictCode) -> Mapping[str, VerdictCode]:
    return MappingProxyType({r.code: r for r in records})


CODES: Mapping[str, VerdictCode] = _records(
    VerdictCode(
        "F101",
        "wrong values",
        "A valid call ran, but elements of an output are further from the reference than the precision standard "
        "and the rigorous bound of a correct kernel allow.",
        "Look at the worst elements in the finding: their batch, head and row usually name the culprit (a mask "
        "edge, a block, a head group, a batch). Replay the entry on another backend: if cpu passes, the fault is "
        "in the candidate.",
    ),
    VerdictCode(
        "F102",
        "not finite",
        "A valid call ran and returned NaN or infinity where the reference is finite, or a finite number where it"
        " is not.",
        "Suspect rows that are fully masked, memory that is read without having been written, overflow of the "
        "working precision, and empty batches.",
    ),
    VerdictCode(
        "F103",
        "output shape or dtype",
        "A valid call ran, but an output has another shape or dtype than the call allocated, or is missing.",
        "Compare the output with outputs.attentionOut and outputs.softmaxLse of the case; for backends written in"
        " Python the adapter is the first suspect.",
    ),
    VerdictCode(
        "F104",
        "left unwritten",
        "The output buffer was filled with a recognisable pattern before the run, and the pattern is still there "
        "in elements that have a defined value.",
        "The kernel skips rows: look at lengths, padding, uneven blocks and the last core's share of the work.",
    ),
    VerdictCode(
        "F105",
        "not deterministic",
        "The same call gave different bits in two runs with identical inputs.",
        "Look for atomic sums, races between cores and reads of memory that nobody wrote. A backend that does not"
        " promise determinism declares it and is not measured.",
    ),
    VerdictCode(
        "F106",
        "metamorphic relation broken",
        "Two calls that must agree (for example the same data in another layout) gave different results.",
        "The finding names the relation and shows both sides; the feature in which the two calls differ is the "
        "suspect.",
    ),
    VerdictCode(
        "F107",
        "wrote outside its outputs",
        "A valid call ran and changed memory that is none of its outputs: an input, or the guard bytes around the tensors and the"
        " workspace. The rest of the last unit of 32 bytes does not count.",
        "The finding says how many bytes, and where the first of them lies. Look at the last block of each core, at tails that are"
        " no multiple of 32 bytes, and at the workspace size that the host computes.",
    ),
    VerdictCode(
        "F201",
        "accepted but invalid",
        "The call breaks a demand of the operator, and the backend took it and returned success.",
        "The finding names the rule, its source and what was broken. Either the check is missing, or the rule no "
        "longer holds in this release: then the profile is the wrong one.",
    ),
    VerdictCode(
        "F202",
        "rejected but valid",
        "The call meets every documented demand, and the backend refused it.",
        "Read the message of the backend, and replay the case under the profile of the installed release: the "
        "limits of a later release may differ.",
    ),
    VerdictCode(
        "F203",
        "wrong status code",
        "An invalid call was refused, with another status code than the stage of the broken rule returns.",
        "The case usually fails another check than the one meant. If the code is new in this release, the profile"
        " needs it.",
    ),
    VerdictCode(
        "F301",
        "crash",
        "The process that ran the call died, ran out of memory or raised an unexpected exception, twice, the "
        "second time alone in a fresh process.",
        "Replay the entry under a debugger or with the device's own log: the case is alone and small. A rejection"
        " was due if the call is invalid.",
    ),
    VerdictCode(
        "F302",
        "hang",
        "The call did not end within the time limit, twice, the second time alone in a fresh process.",
        "Suspect waits between cores and loops over lengths. If the call is only slow, raise the time limit.",
    ),
    VerdictCode(
        "F303",
        "device lost",
        "After the call the device no longer answers, or the backend reported that it was lost.",
        "Reset the device and replay the entry alone. Later cases of the run were held back.",
    ),
    VerdictCode(
        "F304",
        "wrong after other calls",
        "A call that the backend answers rightly in a fresh process goes wrong after other calls in the same process. That"
        " came again when the same calls were made in a fresh process, in the same order.",
        "Look for what outlives a call: compiled kernels, sessions and plans kept by a key that lacks something, buffers and"
        " workspaces that are used again, attributes of a handle. The finding tells the calls before, as few and as like the"
        " failing one as they could be made, and in what they differ from it.",
    ),
    VerdictCode(
        "F401",
        "documents and backend disagree",
        "On ground where the documents and the operator's source are known to differ, the backend took one side. "
        "It is reported once per rule, for information.",
        "Nothing has failed. Whoever relies on the other side should know.",
        "note",
    ),
)
"""Verdict code -> record, in order."""


def title(code: str) -> str:
    """The title of a verdict code; the code itself when it is unknown."""
    record = CODES.get(code)
    return record.title if record else code
