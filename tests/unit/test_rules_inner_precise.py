"""Room inner_precise."""

from __future__ import annotations

from fiafuzz.model.case import TensorSpec
from oracles.constraints.predict import predict
from tests.unit.plain_calls import MASK, call, mla, old
from tests.unit.room_checks import RoomTests

DOC, SRC, A2 = "950-v5", "950-v5-2026.08", "a2-v3"


class TestInnerPrecise(RoomTests):
    group = "inner_precise"
    allowed = {
        **{f"v5.inner_precise.single.value_{n}": (DOC, call(innerPrecise=n)) for n in range(4)},
        "v5.inner_precise.single.int32_truncation": (DOC, call(innerPrecise=2**32 + 1)),
        "v5.inner_precise.cross.precision_bit_fp16_only": (DOC, call(dtype="BFLOAT16", innerPrecise=1)),
        "v5.inner_precise.cross.auto_row_correction": (DOC, call(S=32, KV_S=16, attenMask=MASK, sparseMode=3)),
        "v5.inner_precise.cross.custom_mask_advice": (
            DOC,
            call(attenMask=TensorSpec((1, 16, 32), "BOOL"), sparseMode=1, innerPrecise=1),
        ),
        "v3.inner_precise.cross.dtype_effect": (A2, old(call(dtype="BFLOAT16", innerPrecise=1))),
        "v3.inner_precise.single.row_correction_on": (A2, old(call(innerPrecise=2))),
        "v3.inner_precise.cross.auto_row_correction": (A2, old(call(S=32, KV_S=16, attenMask=MASK, sparseMode=3))),
    }
    accepted = ((SRC, call(innerPrecise=4)), (DOC, mla(innerPrecise=3)), (A2, old(call("TND", innerPrecise=0))))
    refused = (
        (DOC, call(innerPrecise=-1), "FIA-IP-001"),
        (SRC, call(innerPrecise=5), "FIA-IP-001"),
        (A2, old(call(innerPrecise=5)), "FIA-IP-001"),
    )

    def test_four_is_disputed(self):
        assert predict(call(innerPrecise=4), DOC).rule_ids == ("FIA-IP-002",)
        assert predict(call(innerPrecise=4), DOC).verdict == "unspecified"
