"""Planted faults of the room interface: parameter checks that answer wrongly, and empty calls."""

from __future__ import annotations

from typing import Any

from fiafuzz.model.factors import FACTORS

from ..protocol import Outcome
from .record import BY_SOURCE, PACKED, Fault, Words, constant

TILING_ERROR = 561002


def _unchecked(cite: str) -> Any:
    """The one demand with that spec id is not checked."""

    def hook(correct: Any, front: Any, case: Any, scene: Any) -> Any:
        found = front.predict(case, scene)
        if found.verdict == "reject" and found.rules and all(cite in rule.cites for rule in found.rules):
            return None
        return correct(case, scene)

    return hook


def _code(cite: str, code: int) -> Any:
    """A rejection for the demand with that spec id carries a code that none of the broken demands may give."""

    def hook(correct: Any, front: Any, found: Any) -> Any:
        outcome = correct(found)
        if found.rules and cite in found.rules[0].cites and code not in found.codes:
            return Outcome("reject", code=code, stage=outcome.stage, message=outcome.message)
        return outcome

    return hook


def _rejects(words: Words) -> Any:
    """Calls with these factor words are rejected although they are valid."""

    def hook(correct: Any, front: Any, case: Any, scene: Any) -> Any:
        for factor, allowed in words.items():
            word = FACTORS[factor](scene)
            if word != allowed and word not in (allowed if isinstance(allowed, tuple) else ()):
                return correct(case, scene)
        return Outcome("reject", code=TILING_ERROR, stage="checker", message="planted: " + ", ".join(words))

    return hook


def _zero_lse(correct: Any, backend: Any, scene: Any, outputs: Any) -> None:
    correct(scene, outputs)
    if "softmaxLse" in outputs and not scene.empty_query:
        outputs["softmaxLse"].fill(0)


def _rejecting(name: str, title: str, words: Words) -> Fault:
    profile = BY_SOURCE if "kv_lengths" in words else "950-v5"
    return Fault(
        name, title, "interface", {"front.answer": _rejects(words)}, words, kind="check", expect="F202", profile=profile
    )


_TOKENS = "v5.attention_mask.consistency.pre_next_tokens_order"
_DIVISIBLE = "v5.interface.consistency.num_heads_divisible"
_BLOCK_SIZE = "v5.paged_attention.single.block_size_no_quant_gqa_64_128"
_NO_QUERY = "v5.interface.existence.query_not_null"
_PRECISE = "v5.interface.single.inner_precise_values"

FAULTS: tuple[Fault, ...] = (
    Fault(
        "empty-keys-unwritten",
        "a call without keys leaves its output unwritten",
        "interface",
        {"backend.compute_empty": constant(None)},
        {"empty": "kv"},
        expect="F104",
    ),
    Fault(
        "empty-keys-lse-zero",
        "a call without keys holds 0 in softmaxLse",
        "interface",
        {"backend.compute_empty": _zero_lse},
        {"empty": "kv", "lse": "on"},
    ),
    Fault(
        "tokens-unchecked",
        "-nextTokens above preTokens is let through",
        "interface",
        {"front.answer": _unchecked(_TOKENS)},
        {"sparse_mode": ("0", "4")},
        (f"a call that breaks {_TOKENS} alone",),
        "check",
        "F201",
        mode="invalid",
    ),
    Fault(
        "block-size-unchecked",
        "a block size that is no multiple of 16 is let through",
        "interface",
        {"front.answer": _unchecked(_BLOCK_SIZE)},
        {"head_size": ("64", "128")},
        (f"a call that breaks {_BLOCK_SIZE} alone",),
        "check",
        "F201",
        mode="invalid",
    ),
    Fault(
        "inner-precise-unchecked",
        "any innerPrecise is let through",
        "interface",
        {"front.answer": _unchecked(_PRECISE)},
        {},
        (f"a call that breaks {_PRECISE} alone",),
        "check",
        "F201",
        mode="invalid",
    ),
    Fault(
        "heads-code",
        "heads that do not divide are rejected with 161002",
        "interface",
        {"front.reject": _code(_DIVISIBLE, 161002)},
        {},
        (f"a call that breaks {_DIVISIBLE} first",),
        "check",
        "F203",
        mode="invalid",
    ),
    Fault(
        "null-code",
        "a missing query is rejected with 561002",
        "interface",
        {"front.reject": _code(_NO_QUERY, 561002)},
        {},
        (f"a call that breaks {_NO_QUERY} first",),
        "check",
        "F203",
        mode="invalid",
    ),
    Fault(
        "tokens-code",
        "-nextTokens above preTokens is rejected with 161002",
        "interface",
        {"front.reject": _code(_TOKENS, 161002)},
        {"sparse_mode": ("0", "4")},
        (f"a call that breaks {_TOKENS} first",),
        "check",
        "F203",
        mode="invalid",
    ),
    _rejecting("rejects-packed-sink", "learnableSink in packed layouts is rejected", {"sink": "on", "layout": PACKED}),
    _rejecting("rejects-nz-lse", "softmaxLse beside an NZ cache is rejected", {"lse": "on", "storage": "NZ"}),
    _rejecting(
        "rejects-packed-band", "sparseMode 4 in packed layouts is rejected", {"sparse_mode": "4", "layout": PACKED}
    ),
    _rejecting("rejects-long-list", "a list of key lengths longer than B is rejected", {"kv_lengths": "longer"}),
)
