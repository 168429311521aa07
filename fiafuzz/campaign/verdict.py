"""Verdict: what follows from a prediction and a result. Pure functions; the table is in ``decide``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

from .results import Foreseen as Foreseen
from .results import Result

if TYPE_CHECKING:
    from oracles.constraints.predict import Prediction

PASS, FINDING, INFO, UNSUPPORTED = "pass", "finding", "info", "unsupported"
UNTESTABLE, FLAKY, SKIPPED, INTERNAL = "untestable", "flaky", "skipped", "internal"
STATUSES: tuple[str, ...] = (PASS, FINDING, INFO, FLAKY, UNTESTABLE, UNSUPPORTED, SKIPPED, INTERNAL)
"""pass; finding (F1xx-F3xx); info (F401); flaky (seen once, not again); untestable (run, but nothing to compare with);
unsupported (the backend cannot express the call); skipped (not run on purpose); internal (fiafuzz itself failed)."""

NUMERIC_CODES: frozenset[str] = frozenset({"F101", "F102", "F103", "F104", "F105", "F106", "F107"})
CHECK_CODES: frozenset[str] = frozenset({"F201", "F202", "F203"})
PROCESS_CODES: frozenset[str] = frozenset({"F301", "F302", "F303"})

AFTER_CALLS = "F304"
"""The code of what goes wrong after other calls only; nothing that one run says by itself."""

_DEATHS: Mapping[str, str] = {"crash": "F301", "oom": "F301", "error": "F301", "hang": "F302", "lost": "F303"}


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict on one case. ``code`` is F101..F401 or None; ``rule`` is the rule it is about; ``text`` says it in
    words; ``side`` is the side that the backend took on disputed ground (document, source, neither)."""

    status: str
    code: Optional[str] = None
    rule: Optional[str] = None
    text: str = ""
    side: Optional[str] = None

    @property
    def failed(self) -> bool:
        """Whether it is a finding."""
        return self.status == FINDING


def foreseen(prediction: Prediction) -> Foreseen:
    """The prediction as data."""
    sides = (prediction.document, prediction.source)
    document, source = (s.verdict if s is not None else None for s in sides)
    return Foreseen(
        prediction.verdict,
        tuple(sorted(prediction.codes)),
        prediction.rule_ids,
        prediction.stage,
        prediction.basis,
        document,
        source,
    )


def foresee(case: Case, profile: str) -> Foreseen:
    """The prediction of a case under a profile, as data."""
    from oracles.constraints.predict import predict

    return foreseen(predict(case, profile, scene=Scene(case)))


def reason_not_to_run(expected: Foreseen, checks: str, *, dare: bool = False) -> Optional[str]:
    """Why a case is not given to a backend with that kind of checks; None when it is.

    Calls that are known to kill the real host are run only on demand (``dare``); a backend without checks of its own
    gets no call that is, or might be, refused.
    """
    if expected.verdict in ("crash", "hang") and not dare:
        return f"known to {expected.verdict} the host ({', '.join(expected.rules)})"
    if checks == "none" and expected.verdict != "accept":
        return "the backend has no parameter checks"
    return None


def gives_values(expected: Foreseen) -> bool:
    """Whether the outputs of a call that comes back must hold the defined values: it is accepted, or the documents accept
    it though the source does not (who computes it all the same must compute what the documents define)."""
    return expected.verdict == "accept" or (expected.verdict == "unspecified" and expected.document == "accept")


def decide(expected: Foreseen, result: Result) -> Verdict:
    """The verdict that follows from what was foreseen and what happened."""
    kind = result.kind
    if kind in (UNSUPPORTED, UNTESTABLE, INTERNAL, SKIPPED):
        return Verdict(kind, text=_first_line(result.message))
    if kind in _DEATHS:
        if expected.verdict == kind:
            return Verdict(PASS, text=f"{kind}, as the host is known to", rule=_first(expected.rules))
        return Verdict(FINDING, _DEATHS[kind], _first(expected.rules), _death_text(result))
    if expected.verdict == "accept":
        return _accepted_call(result)
    if expected.verdict == "reject":
        return _refused_call(expected, result)
    return _disputed_call(expected, result)


def _accepted_call(result: Result) -> Verdict:
    if result.kind == "reject":
        return Verdict(
            FINDING, "F202", text=f"refused with {result.code} at stage {result.stage}: {_first_line(result.message)}"
        )
    if result.kind != "ok":
        return Verdict(INTERNAL, text=f"unknown outcome {result.kind!r}")
    judged = result.judged
    if judged is not None and not judged.passed:
        return Verdict(FINDING, judged.code or "F101", text=judged.text)
    if result.same is False:
        return Verdict(FINDING, "F105", text="a second run gave other bits")
    if result.broken is not None:
        return Verdict(FINDING, "F106", result.broken.relation, f"{result.broken.relation}: {result.broken.text}")
    if judged is not None and judged.text and not judged.compared:
        return Verdict(UNTESTABLE, text=judged.text)
    if judged is not None and not judged.compared and judged.untestable:
        return Verdict(UNTESTABLE, text="every element is ill-conditioned")
    return Verdict(PASS)


def _refused_call(expected: Foreseen, result: Result) -> Verdict:
    rule = _first(expected.rules)
    wanted = " or ".join(str(c) for c in expected.codes)
    if result.kind == "ok":
        return Verdict(FINDING, "F201", rule, f"accepted, but {wanted} was due")
    if result.kind != "reject":
        return Verdict(INTERNAL, text=f"unknown outcome {result.kind!r}")
    if result.code is not None and expected.codes and result.code not in expected.codes:
        return Verdict(
            FINDING, "F203", rule, f"refused with {result.code} at stage {result.stage}, but {wanted} was due"
        )
    return Verdict(PASS, rule=rule)


def _disputed_call(expected: Foreseen, result: Result) -> Verdict:
    """Neither accepting nor refusing fails here, but wrong values and crashes do; where the two sides give different answers,
    the side taken is worth a note."""
    if expected.verdict in ("crash", "hang"):  # dared, and it did not happen
        return Verdict(
            INFO,
            "F401",
            _first(expected.rules),
            f"{result.kind} where the host is known to {expected.verdict}",
            "neither",
        )
    if result.kind == "ok" and gives_values(expected):
        computed = _accepted_call(result)
        if computed.failed:
            return computed
    if expected.document is None or expected.source is None or expected.document == expected.source:
        return Verdict(PASS, rule=_first(expected.rules))
    answer = "accept" if result.kind == "ok" else "reject"
    sides = [name for name, said in (("document", expected.document), ("source", expected.source)) if said == answer]
    side = sides[0] if len(sides) == 1 else "neither"
    return Verdict(
        INFO,
        "F401",
        _first(expected.rules),
        f"document: {expected.document}, source: {expected.source}, backend: {answer}",
        side,
    )


def _death_text(result: Result) -> str:
    where = f" in stage {result.stage_at}" if result.stage_at and result.stage_at != "run" else ""
    return f"{result.kind}{where}: {_first_line(result.message)}"


def _first(items: tuple[str, ...]) -> Optional[str]:
    return items[0] if items else None


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def error_of(result: Result) -> str:
    """What tells apart two failures of the same code: the status, the signal or the kind of exception; "" for numeric
    ones."""
    if result.kind == "reject":
        return str(result.code)
    if result.kind == "crash":
        return f"signal {result.signal}" if result.signal else "exit"
    if result.kind == "error":
        return result.message.split(":", 1)[0]
    return result.kind if result.kind in _DEATHS else ""


def as_data(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain data."""
    found: dict[str, Any] = msgspec.to_builtins(verdict)
    return found
