"""Learnable sink: accepted behaviour, hand-written pairs of the trickiest rules, totality."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case
from tests.unit.plain_calls import antiquant, call, mla, old, per_tensor
from tests.unit.rule_checks import (
    BOTH,
    DOCUMENT,
    OLD_V5,
    SOURCE,
    accepted,
    disputed,
    mangled,
    none_raises,
    refused,
    spec,
)

B16 = "BFLOAT16"


def sunk(layout: str = "BNSD", sink: str = B16, **more: Any) -> Case:
    """A BFLOAT16 call of 4 heads with a sink."""
    return call(layout, **{"dtype": B16, "learnableSink": spec(sink, 4), **more})


def old_sunk(**more: Any) -> Case:
    """The same on A2."""
    return old(sunk(**more), api="v5")


PADDING: dict[str, Any] = {"queryPaddingSize": spec("INT64", 1), "actualSeqLengths": (8, 16)}
PREFIX: dict[str, Any] = {"keySharedPrefix": spec(B16, 1, 2, 16, 64), "valueSharedPrefix": spec(B16, 1, 2, 16, 64)}
BASES: tuple[Case, ...] = (sunk(), sunk("TND"), sunk(**PADDING), sunk(**PREFIX), mla(learnableSink=spec("FLOAT16", 8)),
                           antiquant(learnableSink=spec("FLOAT16", 4)), old_sunk())


def test_a_sink_enters_the_softmax() -> None:
    # v5.learnable_sink.cross.math: more of it is the business of the value oracle
    for layout in ("BSH", "BNSD", "BSND", "TND", "BNSD_BSND"):
        accepted(sunk(layout), *BOTH)
    for storage in ("tensor_list", "BnNBsD"):
        accepted(sunk(storage=storage), *BOTH)
    accepted(old_sunk(), OLD_V5)


def test_dtype() -> None:
    # v5.learnable_sink.single.dtype, cross.dtype_equals_query
    accepted(sunk(sink="FLOAT16", dtype="FLOAT16"), *BOTH)
    refused(sunk(sink="FLOAT32"), "FIA-LS-001", *BOTH)
    refused(sunk(sink="FLOAT16"), "FIA-LS-004", *BOTH)


def test_a2_wants_bfloat16_and_does_not_compare() -> None:
    disputed(old_sunk(sink="FLOAT16", dtype="FLOAT16"), "FIA-LS-016", "accept", "reject", OLD_V5)
    disputed(old_sunk(dtype="FLOAT16"), "FIA-LS-024", "reject", "accept", OLD_V5)


def test_one_number_a_query_head() -> None:
    # v5.learnable_sink.single.rank, length
    refused(sunk(learnableSink=spec(B16, 3)), "FIA-LS-003", *BOTH)
    refused(sunk(learnableSink=spec(B16, 0)), "FIA-LS-003", *BOTH)
    refused(sunk(learnableSink=spec(B16, 1, 4)), "FIA-LS-002", *BOTH)
    refused(old_sunk(learnableSink=spec(B16, 3)), "FIA-LS-003", OLD_V5)


def test_head_sizes() -> None:
    # v5.learnable_sink.cross.qk_head_dim, value_head_dim
    accepted(sunk(D=192, V_D=128), *BOTH)
    accepted(sunk(D=128, V_D=64), *BOTH)
    refused(sunk(D=96), {"FIA-LS-005", "FIA-LS-006"}, *BOTH)


@pytest.mark.parametrize("precise", [1, 2, 3])
def test_inner_precise_is_0(precise: int) -> None:
    # v5.learnable_sink.cross.inner_precise_zero
    refused(sunk(innerPrecise=precise), "FIA-LS-007", *BOTH)


def test_features_that_take_no_sink() -> None:
    # v5.learnable_sink.cross.no_left_padding, no_prefix, no_pse
    refused(sunk(**PADDING), "FIA-LS-008", *BOTH)
    refused(sunk(**PREFIX), "FIA-LS-009", *BOTH)
    refused(sunk(pseShift=spec(B16, 1, 4, 16, 32)), "FIA-LS-010", *BOTH)


def test_ignored_padding_passes() -> None:
    # a single token ignores a padding of the key without lengths
    accepted(sunk(S=1, kvPaddingSize=spec("INT64", 1)), *BOTH)


def test_slopes_are_refused_by_document_and_release_for_other_reasons() -> None:
    # v5.learnable_sink.cross.no_alibi; the release knows no pseType 2
    case = sunk(S=32, KV_S=32, pseType=2, pseShift=spec("FLOAT32", 4))
    refused(case, "FIA-LS-011", DOCUMENT)
    refused(case, "FIA-PS-001", SOURCE)


def test_kinds_that_take_no_sink() -> None:
    # v5.learnable_sink.cross.no_decode_mla, no_antiquant, no_full_quant
    refused(mla(learnableSink=spec("FLOAT16", 8)), "FIA-LS-014", *BOTH)
    refused(antiquant(learnableSink=spec("FLOAT16", 4)), "FIA-LS-013", *BOTH)
    refused(per_tensor(learnableSink=spec(B16, 4)), "FIA-LS-012", *BOTH)


def test_a2_refuses_what_950_refuses() -> None:
    refused(old_sunk(innerPrecise=1), "FIA-LS-027", OLD_V5)
    refused(old(antiquant(dtype=B16, learnableSink=spec(B16, 4)), api="v5"), "FIA-LS-032", OLD_V5)


def test_post_quantisation_is_refused_by_the_source() -> None:
    # v5.post_quant.cross.with_sink_forbidden
    case = sunk(out_dtype="INT8", quantScale2=spec("FLOAT32", 1))
    disputed(case, "FIA-LS-015", "accept", "reject", DOCUMENT)
    refused(case, "FIA-LS-015", SOURCE)


@given(case=mangled(BASES))
@settings(max_examples=200, deadline=None)
def test_no_rule_raises_on_malformed_calls(case: Case) -> None:
    none_raises("learnable_sink", case)
