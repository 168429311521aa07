"""Vendor case files: tables, ATK files, tiny_rdv files; every row is a case or is named with the reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fiafuzz.campaign.imports import FORMATS, Imported, Unmapped
from fiafuzz.model.scene import Scene

HEADER = [
    "case_name",
    "query_shape",
    "query_dtype",
    "query_format",
    "key_shape",
    "key_dtype",
    "key_format",
    "value_shape",
    "value_dtype",
    "value_format",
    "dequant_scale1_shape",
    "dequant_scale1_dtype",
    "dequant_scale1_format",
    "actual_seq_lengths_kv_shape",
    "actual_seq_lengths_kv_dtype",
    "actual_seq_lengths_kv_format",
    "actual_seq_lengths_kv_data",
    "block_table_shape",
    "block_table_dtype",
    "block_table_format",
    "q_start_idx_shape",
    "q_start_idx_dtype",
    "q_start_idx_format",
    "attention_out_shape",
    "attention_out_dtype",
    "attention_out_format",
    "num_heads",
    "scale",
    "input_layout",
    "softmax_lse_flag",
    "pse_type",
    "out_dtype",
    "expectResult",
    "key_stride",
]
ROW = {
    "case_name": "plain",
    "query_shape": "2 4 1 64",
    "query_dtype": "BF16",
    "query_format": "ND",
    "key_shape": "1 4 16 64|1 4 8 64",
    "key_dtype": "BF16",
    "value_shape": "1 4 16 64|1 4 8 64",
    "value_dtype": "BF16",
    "actual_seq_lengths_kv_shape": "2",
    "actual_seq_lengths_kv_dtype": "INT64",
    "actual_seq_lengths_kv_data": "16 5",
    "attention_out_shape": "2 4 1 64",
    "attention_out_dtype": "BF16",
    "num_heads": "4",
    "scale": "0.125",
    "input_layout": "BNSD",
    "softmax_lse_flag": "0",
    "block_table_dtype": "INT32",
    "expectResult": "SUCCESS",
    "key_stride": "4096 1024 64 1|",
}


def table(tmp_path: Path, *rows: dict[str, str]) -> str:
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, HEADER, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_table_row(tmp_path: Path) -> None:
    (found,) = FORMATS["ut-csv"](table(tmp_path, ROW), "v5", "950")
    assert isinstance(found, Imported)
    s = Scene(found.case)
    assert (found.name, found.expects, s.storage, s.B, s.KV_S, s.kv_lens, s.Q_N) == ("plain", "accept", "tensor_list", 2, 16, (16, 5), 4)
    assert found.case.inputs.key is not None and found.case.inputs.key[0] is not None
    assert found.case.inputs.key[0].strides == (4096, 1024, 64, 1)
    assert found.case.inputs.blockTable is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query_dtype": "FLOAT32"}, "query: dtype 'FLOAT32' is unknown"),
        ({"query_shape": "2 x 1"}, "no list of integers"),
        ({"actual_seq_lengths_kv_data": ""}, "without values"),
        ({"num_heads": ""}, "numHeads is missing"),
        ({"num_heads": "many"}, "numHeads: 'many' is no number"),
        ({"query_format": "XY"}, "unknown format"),
    ],
)
def test_table_row_that_cannot_be_said(tmp_path: Path, change: dict[str, str], says: str) -> None:
    bad, good = FORMATS["ut-csv"](table(tmp_path, {**ROW, **change, "case_name": "odd"}, ROW), "v5", "950")
    assert isinstance(bad, Unmapped) and bad.name == "odd" and says in bad.reason
    assert isinstance(good, Imported)


def test_table_for_an_older_interface_leaves_out_what_it_lacks(tmp_path: Path) -> None:
    row = {**ROW, "q_start_idx_shape": "1", "q_start_idx_dtype": "INT64", "pse_type": "2"}
    (found,) = FORMATS["ut-csv"](table(tmp_path, row), "v3", "a2")
    assert isinstance(found, Imported)
    assert found.remarks == ("qStartIdx is not part of v3 and was left out", "pseType is not part of v3 and was left out")
    assert found.case.inputs.qStartIdx is None and found.case.attrs.pseType == 0


def test_file_that_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(csv.Error, match="no column query_shape"):
        list(FORMATS["ut-csv"](str(path), "v5", "950"))


def atk_item(name: str, kind: str, dtype: str, shape: object, values: object) -> dict[str, object]:
    return {"name": name, "type": kind, "required": True, "dtype": dtype, "shape": shape, "range_values": values}


ATK = {
    "id": 3,
    "name": "atk_one",
    "aclnn_name": "aclnnFusedInferAttentionScoreV4",
    "expected_error_msg": None,
    "inputs": [
        atk_item("query", "tensor", "fp16", [1, 4, 8, 64], [-2, 2]),
        [atk_item("key", "tensors", "fp16", [1, 4, 16, 64], [-1, 1])],
        [atk_item("value", "tensors", "fp16", [1, 4, 16, 64], [-1, 1])],
        atk_item("pseShiftOptional", "tensor", "fp16", [1], ["None"]),
        [atk_item("actualSeqLengthsKvOptional", "attrs", "int", [1], 11)],
        atk_item("learnableSinkOptional", "tensor", "fp16", [4], ["None"]),
        atk_item("numHeads", "attr", "int", None, 4),
        atk_item("scaleValue", "attr", "double", None, [0.125]),
        atk_item("inputLayout", "attr", "string", None, "BNSD"),
        atk_item("softmaxLseFlag", "attr", "bool", None, True),
        atk_item("attentionOut", "tensor", "fp16", [1, 4, 8, 64], [0, 0]),
        atk_item("softmaxLse", "tensor", "fp32", [1, 4, 8, 1], [0, 0]),
    ],
    "outputs": None,
}


def test_atk_call(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([ATK, {"name": "broken", "inputs": [atk_item("nosuch", "attr", "int", None, 1)]}]))
    good, bad = FORMATS["atk"](str(path), "v3", "a2")
    assert isinstance(good, Imported) and isinstance(bad, Unmapped)
    assert (good.case.api, good.case.attrs.softmaxLseFlag, good.case.inputs.actualSeqLengthsKv) == ("v4", True, (11,))
    assert good.case.inputs.pseShift is None and good.case.inputs.query is not None
    assert good.case.inputs.query.fill is not None and bad.reason == "parameter 'nosuch' is unknown"


RDV = {
    "case_name": "r",
    "input_layout": "TND",
    "b": 2,
    "n2": 1,
    "g": 4,
    "s1": 3,
    "s2": 20,
    "qk_d": 128,
    "v_d": 128,
    "rope_d": 64,
    "kv_storage_mode": "pa_bbh",
    "q_dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "out_dtype": "bfloat16",
    "rope_dtype": "bfloat16",
    "block_size": 16,
    "act_seq_lens_q": [1, 3],
    "act_seq_lens_kv": [20, 5],
    "enable_softmax_lse": True,
    "enable_mask": True,
    "mask_shape": [2048, 2048],
    "sparse_mode": 3,
    "pre_tokens": 2147483647,
    "next_tokens": 2147483647,
    "enable_learnable_sink": False,
    "inner_precise": 0,
}


def test_rdv_call(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(RDV))
    (found,) = FORMATS["rdv"](str(path), "v5", "950")
    assert isinstance(found, Imported)
    s = Scene(found.case)
    assert (s.B, s.T, s.q_lens, s.kv_lens, s.cache_layout, s.mla_kind, s.Q_D, s.rope_d) == (
        2,
        4,
        (1, 3),
        (20, 5),
        "BnBsH",
        "prefill_split",
        128,
        64,
    )
    assert found.case.inputs.actualSeqLengths == (1, 4)


@pytest.mark.parametrize(
    "change", [{"b": "2"}, {"input_layout": "XY"}, {"kv_storage_mode": "odd"}, {"q_dtype": "float17"}, {"block_size": 0}]
)
def test_rdv_call_that_cannot_be_said(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**RDV, **change}))
    (found,) = FORMATS["rdv"](str(path), "v5", "950")
    assert isinstance(found, Unmapped) and found.reason


@pytest.mark.parametrize("form", ["atk", "rdv"])
@pytest.mark.parametrize("text", ["{", "", "\x00", "[" * 50_000])
def test_files_that_are_no_json(tmp_path: Path, form: str, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json"):
        list(FORMATS[form](str(path), "v5", "950"))
