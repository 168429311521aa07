"""Room softmax_lse."""

from __future__ import annotations

from fiafuzz.model.case import TensorSpec
from oracles.constraints.predict import predict
from tests.unit.plain_calls import MASK, call, mla, old
from tests.unit.room_checks import RoomTests

DOC, SRC, A2 = "950-v5", "950-v5-2026.08", "a2-v3"


def lse(*shape, dtype="FLOAT32", layout="BNSD", **more):
    """A plain call (B 2, N 4, S 16) that wants a softmaxLse of this shape."""
    return call(layout, softmaxLseFlag=True, softmaxLse=TensorSpec(shape, dtype), **more)


class TestSoftmaxLse(RoomTests):
    group = "softmax_lse"
    allowed = {
        "v5.softmax_lse.existence.flag_false_ignored": (DOC, call(softmaxLse=TensorSpec((7, 0), "INT8"))),
        "v5.softmax_lse.cross.empty_tensor_skips_shape": (DOC, lse(5, KV_S=0)),
        "v5.softmax_lse.cross.value_definition": (DOC, call(lse=True)),
        "v5.softmax_lse.cross.invalid_rows_inf": (DOC, call(lse=True, S=32, KV_S=16, attenMask=MASK, sparseMode=3)),
        "v3.softmax_lse.existence.flag_false_tensor_given": (A2, old(call(softmaxLse=TensorSpec((3,), "FLOAT32")))),
        "v3.softmax_lse.existence.flag_false_null": (A2, old(call())),
    }
    accepted = (
        (DOC, call("BSND", lse=True)),
        (DOC, call("NTD", lse=True)),
        (DOC, mla("TND_NTD", lse=True)),
        (DOC, mla("BSH_NBSD", lse=True)),
        (A2, old(call("TND", lse=True))),
        (SRC, call(D=192, V_D=128, lse=True)),
    )
    refused = (
        (DOC, call(softmaxLseFlag=True), "FIA-SL-001"),
        (SRC, lse(2, 4, 16, 1, dtype="FLOAT16"), "FIA-SL-002"),
        (SRC, lse(0), "FIA-SL-003"),
        (SRC, lse(0, KV_S=0), "FIA-SL-003"),
        (DOC, lse(4, 32, 1, layout="TND"), "FIA-SL-004"),
        (DOC, lse(2, 4, 16, 1, layout="TND"), "FIA-SL-004"),
        (DOC, lse(2, 16, 4, 1), "FIA-SL-005"),
        (DOC, lse(2, 4, 16), "FIA-SL-005"),
        (SRC, call(V_D=96, lse=True), "FIA-SL-006"),
        (A2, old(lse(2, 4, 16)), "FIA-SL-011"),
    )

    def test_unequal_head_sizes_with_lse_are_refused_by_the_source_only(self):
        assert predict(call(V_D=96, lse=True), DOC).verdict == "unspecified"
