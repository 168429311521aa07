"""Room actual_seq_len: whether the length arrays are given, how long they are, which values they hold."""

from __future__ import annotations

from oracles.constraints.predict import predict
from tests.unit.plain_calls import antiquant, call, full_mla, mla, old
from tests.unit.room_checks import RoomTests

DOC, SRC, A2 = "950-v5", "950-v5-2026.08", "a2-v3"


def wide(**more):
    """A batch call with four batches."""
    return call(B=4, **more)


class TestActualSeqLen(RoomTests):
    group = "actual_seq_len"
    allowed = {
        "v5.actual_seq_len.single.q_len1_broadcast": (DOC, wide(actualSeqLengths=(7,))),
        "v5.actual_seq_len.single.q_extra_ignored": (DOC, wide(actualSeqLengths=(1, 2, 3, 4, -99))),
        "v5.actual_seq_len.single.kv_len1_broadcast": (SRC, wide(actualSeqLengthsKv=(7,))),
        "v5.actual_seq_len.single.kv_extra_ignored": (SRC, wide(actualSeqLengthsKv=(1, 2, 3, 4, 9999))),
        "v5.actual_seq_len.single.kv_pa_tnd_per_batch": (DOC, call("TND", storage="BnBsH", actualSeqLengthsKv=(32, 5))),
        "v5.actual_seq_len.single.null_means_full": (DOC, call()),
        "v5.actual_seq_len.cross.legacy_decode_q_ignored_a2": (
            "a2-v5",
            old(call(S=1, actualSeqLengths=(-1, 99, 3)), api="v5"),
        ),
        "v5.actual_seq_len.cross.antiquant_decode_q_ignored": (DOC, antiquant(actualSeqLengths=(0, 1))),
        "v3.actual_seq_len.single.q_table": (A2, old(call())),
        "v3.actual_seq_len.single.kv_table": (A2, old(call())),
        "v3.actual_seq_len.consistency.qs_gt1_q_len1_a2": (A2, old(wide(actualSeqLengths=(7,)))),
        "v3.actual_seq_len.consistency.qs_gt1_q_len_ge_b_a2": (A2, old(wide(actualSeqLengths=(1, 2, 3, 4, 5)))),
        "v3.actual_seq_len.consistency.qs_gt1_kv_len1_a2": (A2, old(wide(actualSeqLengthsKv=(7,)))),
        "v3.actual_seq_len.consistency.qs_gt1_kv_len_ge_b_a2": (A2, old(wide(actualSeqLengthsKv=(1, 2, 3, 4, 5)))),
        "v3.actual_seq_len.single.qs_eq1_q_void_a2": (A2, old(wide(S=1, actualSeqLengths=(99, 98)))),
        "v3.actual_seq_len.consistency.qs_eq1_kv_len1_a2": (A2, old(wide(S=1, actualSeqLengthsKv=(7,)))),
        "v3.actual_seq_len.consistency.qs_eq1_kv_len_ge_b_a2": (A2, old(wide(S=1, actualSeqLengthsKv=(1, 2, 3, 4, 5)))),
    }
    accepted = (
        (DOC, wide(actualSeqLengths=(0, 16, 1, 0))),
        (DOC, wide(actualSeqLengthsKv=(32, 0, 1, 2))),
        (DOC, call("TND", actualSeqLengths=(0, 32), actualSeqLengthsKv=(64, 64))),
        (DOC, full_mla("TND")),
        (SRC, call(storage="tensor_list", actualSeqLengthsKv=(32, 32))),
        (DOC, mla(actualSeqLengths=(1, 2))),
    )
    refused = (
        (DOC, call("TND", actualSeqLengths=None), "FIA-AS-001"),
        (SRC, call("NTD_TND", actualSeqLengths=()), "FIA-AS-001"),
        (DOC, call("TND", actualSeqLengthsKv=None), "FIA-AS-002"),
        (DOC, wide(actualSeqLengths=(1, 2, 3)), "FIA-AS-003"),
        (SRC, wide(actualSeqLengths=()), "FIA-AS-003"),
        (DOC, wide(actualSeqLengthsKv=(1, 2)), "FIA-AS-004"),
        (DOC, call("TND", actualSeqLengthsKv=(32, 64, 64)), "FIA-AS-006"),
        (DOC, call("TND", B=3, actualSeqLengths=(16, 15, 48)), "FIA-AS-011"),
        (DOC, call("TND", actualSeqLengths=(16, 31)), "FIA-AS-012"),
        (DOC, wide(actualSeqLengths=(16, 17, 0, 0)), "FIA-AS-013"),
        (DOC, wide(actualSeqLengths=(1, -1, 0, 0)), "FIA-AS-014"),
        (DOC, call("TND", B=3, actualSeqLengthsKv=(32, 31, 96)), "FIA-AS-015"),
        (DOC, call("TND", actualSeqLengthsKv=(32, 65)), "FIA-AS-016"),
        (DOC, wide(actualSeqLengthsKv=(33, 0, 0, 0)), "FIA-AS-017"),
        (DOC, wide(actualSeqLengthsKv=(-1, 0, 0, 0)), "FIA-AS-018"),
        (DOC, full_mla(actualSeqLengths=(1, 1)), "FIA-AS-021"),
        (A2, old(wide(actualSeqLengths=(1, 2, 3))), "FIA-AS-003"),
    )

    def test_one_key_length_is_disputed_between_text_and_table(self):
        found = predict(wide(actualSeqLengthsKv=(7,)), DOC)
        assert (
            found.verdict == "unspecified" and found.document.verdict == "reject" and found.source.verdict == "accept"
        )

    def test_a_list_is_compared_with_its_longest_item(self):
        assert predict(call(storage="tensor_list", actualSeqLengthsKv=(33, 1)), SRC).rule_ids == ("FIA-AS-017",)

    def test_packed_calls_need_the_query_lengths_even_when_they_are_empty(self):
        assert predict(call("TND", KV_S=0, actualSeqLengths=None), SRC).rule_ids == ("FIA-AS-001",)

    def test_the_fast_route_of_a2_does_not_look_at_cumulative_lengths(self):
        assert predict(old(call("TND", actualSeqLengths=(16, 31))), A2).verdict == "unspecified"
