"""Room common: heads, axes, head sizes, layouts, tensor lists, sizes, empty calls."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import LAYOUTS
from oracles.constraints.predict import predict
from tests.unit.plain_calls import antiquant, call, full_mla, mla, old
from tests.unit.room_checks import RoomTests

DOC, SRC, A2 = "950-v5", "950-v5-2026.08", "a2-v3"


def shaped(case, name, *shape):
    """The call with a tensor of another shape (of a list: the first)."""
    found = case.get(name)
    if isinstance(found, tuple):
        return case.replace(**{name: (replace(found[0], shape=shape), *found[1:])})
    return case.replace(**{name: replace(found, shape=shape)})


def listed(*lengths, **more):
    """Key and value as lists of items with these lengths."""
    case = call(storage="tensor_list", B=len(lengths), KV_S=max(lengths), **more)
    items = tuple(TensorSpec((1, 2, n, 64), "FLOAT16") for n in lengths)
    return case.replace(key=items, value=items)


class TestCommon(RoomTests):
    group = "common"
    allowed = {
        "v5.common.existence.query_out_empty": (DOC, call(S=0)),
        "v5.common.existence.kv_empty_gives_zeros": (DOC, call(KV_S=0)),
        "v5.common.consistency.head_dim_no_alignment_950": (DOC, call(D=127)),
        "v5.common.consistency.inner_precise_effect": (DOC, call(dtype="BFLOAT16", innerPrecise=1)),
        "v3.common.existence.kv_empty_zero_output": (A2, old(call(KV_S=0))),
        "v3.common.existence.attention_out_empty": (A2, old(call(S=0, numHeads=-1, sparseMode=7))),
        "v3.common.existence.other_null_inputs": (A2, old(call())),
        "v3.common.single.num_kv_heads_table": (A2, old(call(KV_N=4, numKeyValueHeads=0))),
        "v3.common.cross.qs_eq1_d_no_align_fp": (A2, old(call(S=1, D=100))),
    }
    accepted = (
        (SRC, mla(N=127)),
        (SRC, mla(N=3)),
        (DOC, mla(N=128)),
        (DOC, call(V_D=96)),
        (DOC, call(D=192, V_D=128)),
        (DOC, call("TND", D=33, V_D=128)),
        (DOC, call("BNSD_BSND", D=48)),
        (DOC, call(D=512)),
        (DOC, call("NTD", D=128)),
        (DOC, listed(32, 7, 1)),
        (SRC, listed(32, 0)),
        (SRC, call(key=(TensorSpec((2, 2, 0, 64), "FLOAT16"),), value=(TensorSpec((2, 2, 0, 64), "FLOAT16"),))),
        (A2, old(call(D=128, dtype="BFLOAT16"))),
        (A2, old(call("TND", D=256))),
        (A2, old(call("NTD_TND", D=128, dtype="BFLOAT16"))),
        (SRC, call("BSH_BNSD", D=192, V_D=128)),
        (SRC, call("TND_NTD", N=8, KV_N=1, D=512, rope=True)),
    )
    refused = (
        (DOC, call(numHeads=0), "FIA-CO-001"),
        (DOC, call(numHeads=2**31), "FIA-CO-001"),
        (DOC, call(numKeyValueHeads=-1), "FIA-CO-002"),
        (DOC, call(N=5), "FIA-CO-003"),
        (SRC, call(numHeads=8), "FIA-CO-004"),  # v5.interface.consistency.num_heads_vs_query_n
        (SRC, shaped(shaped(call(), "key", 2, 3, 32, 64), "value", 2, 3, 32, 64), "FIA-CO-005"),
        (SRC, shaped(call("BSH"), "query", 2, 16, 257), "FIA-CO-006"),
        # Decode MLA: any count up to 128 since August 2026, powers of two before and with full quantisation
        (SRC, mla(N=129), "FIA-CO-012"),
        (DOC, mla(N=3), "FIA-CO-011"),
        (SRC, full_mla(N=3), "FIA-CO-013"),
        (SRC, mla(N=3, attenMask=TensorSpec((1, 2, 32), "BOOL")), "FIA-CO-014"),
        # layouts and head sizes
        (DOC, call("BNSD_NBSD"), "FIA-CO-021"),
        (DOC, mla("NTD"), "FIA-CO-023"),
        (DOC, call("NTD", D=96), "FIA-CO-026"),
        (DOC, call("BSND_BNSD", D=192), "FIA-CO-026"),
        (DOC, call("BNSD_BSND", D=40), "FIA-CO-027"),
        (SRC, call("BNSD_BSND", D=48, out_dtype="INT8", quantScale2=TensorSpec((1,), "FLOAT32")), "FIA-CO-028"),
        (DOC, call(D=513), "FIA-CO-031"),
        (DOC, call(D=64, V_D=129), "FIA-CO-032"),
        (SRC, call(D=192, V_D=127), "FIA-CO-032"),
        (DOC, call("BNSD_BSND", D=64, V_D=96), "FIA-CO-033"),
        (SRC, call(V_D=96, out_dtype="INT8", quantScale2=TensorSpec((1,), "FLOAT32")), "FIA-CO-034"),
        # axes
        (SRC, shaped(call(), "query", 2, 4, 1024), "FIA-CO-051"),
        (SRC, shaped(call(), "key", 2, 2, 2048), "FIA-CO-052"),
        (SRC, shaped(call(), "attentionOut", 2, 4, 17, 64), "FIA-CO-055"),
        (SRC, shaped(call("BNSD_BSND"), "attentionOut", 2, 16, 5, 64), "FIA-CO-056"),
        (SRC, shaped(call(), "attentionOut", 2, 4, 16, 65), "FIA-CO-057"),
        (SRC, shaped(shaped(call(), "key", 3, 2, 32, 64), "value", 3, 2, 32, 64), "FIA-CO-059"),
        (SRC, shaped(call(), "key", 2, 2, 32, 65), "FIA-CO-060"),
        (SRC, shaped(call(), "value", 2, 2, 31, 64), "FIA-CO-061"),
        # empty calls and sizes
        (SRC, shaped(call(), "attentionOut", 2, 4, 0, 64), "FIA-CO-075"),
        (SRC, call(B=65537, S=1, KV_S=1), "FIA-CO-071"),
        # tensor lists
        (SRC, listed(32, 32).replace(value=(TensorSpec((1, 2, 32, 64), "FLOAT16"),)), "FIA-CO-081"),
        (A2, old(listed(32, 32).replace(value=(TensorSpec((1, 2, 32, 64), "FLOAT16"),))), "FIA-CO-082"),
        (
            SRC,
            listed(32, 7, 1).replace(
                query=TensorSpec((2, 4, 16, 64), "FLOAT16"), attentionOut=TensorSpec((2, 4, 16, 64), "FLOAT16")
            ),
            "FIA-CO-083",
        ),
        (
            SRC,
            listed(32, 7).replace(value=(TensorSpec((1, 2, 32, 64), "FLOAT16"), TensorSpec((1, 2, 8, 64), "FLOAT16"))),
            "FIA-CO-085",
        ),
        (SRC, listed(32, 7).replace(blockTable=TensorSpec((2, 1), "INT32", values=(0, 1))), "FIA-CO-086"),
        (
            SRC,
            listed(32, 7).replace(key=(TensorSpec((1, 2, 32, 64), "FLOAT16"), TensorSpec((1, 2, 7, 64), "INT8"))),
            "FIA-CO-090",
        ),
        # A2/A3
        (A2, old(call(D=72)), "FIA-CO-110"),
        (A2, old(call("TND", D=320)), "FIA-CO-104"),
    )

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_every_layout_has_a_valid_call(self, layout):
        case = mla(layout) if "NBSD" in layout or layout == "TND_NTD" else call(layout)
        assert predict(case, DOC).verdict == predict(case, SRC).verdict == "accept"

    @pytest.mark.parametrize("layout", ["TND", "NTD_TND"])
    def test_only_the_document_refuses_packed_calls_with_quantised_keys(self, layout):
        found = predict(old(antiquant(layout, S=16, D=128)), A2)
        assert (found.verdict, found.rule_ids) == ("unspecified", ("FIA-CO-116",))

    def test_a_negative_query_axis_hangs_the_host(self):
        case = call(B=512, S=-1)
        assert predict(case, SRC).verdict == predict(case, DOC).verdict == "hang"

    def test_the_free_axes_of_a_transposed_output_are_disputed(self):
        case = shaped(call("BNSD_BSND"), "attentionOut", 3, 16, 4, 64)
        assert predict(case, DOC).verdict == "unspecified" and predict(case, SRC).verdict == "accept"

    def test_an_empty_call_skips_what_stands_behind_the_parser(self):
        assert predict(call(KV_S=0, sparseMode=7, numHeads=8), SRC).verdict == "accept"
        assert predict(call(KV_S=0, numHeads=0), SRC).rule_ids == ("FIA-CO-001",)

    def test_what_the_fast_route_of_a2_does_not_look_at_is_disputed(self):
        case = old(call("TND", numHeads=5, N=4, KV_N=2))
        assert predict(case.replace(numHeads=5), A2).verdict == "unspecified"

    def test_later_items_of_a_list_are_only_documented(self):
        items = (TensorSpec((1, 2, 32, 64), "FLOAT16"), TensorSpec((1, 2, 7, 64), "FLOAT16"))
        case = listed(32, 7).replace(key=items, value=(items[0], replace(items[1], dtype="INT64")))
        assert predict(case, SRC).verdict == "accept" and predict(case, DOC).verdict == "unspecified"

    def test_antiquant_counts_packed_words_as_eight(self):
        case = antiquant(D=128, kv_dtype="INT4")
        words = (TensorSpec((2, 2, 32, 16), "INT32"),)
        offsets = {n: TensorSpec((2, 128), "FLOAT16") for n in ("keyAntiquantOffset", "valueAntiquantOffset")}
        assert predict(case.replace(key=words, value=words, **offsets), SRC).verdict == "accept"
        assert (
            "FIA-CO-060"
            in predict(case.replace(key=(TensorSpec((2, 2, 32, 8), "INT32"),), value=words, **offsets), SRC).rule_ids
        )
