"""ATK files and unit-test tables: reading back what was written gives the same call, and what cannot be said is told or refused."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.exports import CannotExport, Item, Remarks, export_table
from fiafuzz.campaign.exports.atk import call_of
from fiafuzz.campaign.exports.ut_csv import WITH_STRIDES, header, row_of
from fiafuzz.campaign.imports import FORMATS, Imported
from fiafuzz.campaign.imports.atk import is_integer
from fiafuzz.model.case import Case, Constant, TensorSpec, Uniform
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import INPUTS, OUTPUTS, Kind
from fiafuzz.model.profiles import PROFILES
from strategies.cases import boundary_cases, generate, invalid_cases, valid_cases

from .plain_calls import call, mla

FORMS = ("atk", "ut-csv")
ASKED = ("950-v5", "a2-v3", "a3-v3", "a2-v5", "950-v5-2026.08")


def back(form: str, items: list[Item]) -> list[Imported]:
    """The items written and read again."""
    text, written, refused, _ = export_table(form, items)
    assert written == len(items) and not refused, refused
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_bytes(text.encode())
        found = list(FORMATS[form](str(path), items[0].case.api, items[0].case.product))
    assert all(isinstance(f, Imported) for f in found), found
    return found  # type: ignore[return-value]


def sayable(case: Case, form: str) -> Case:
    """The call without what no case file holds: the seed, and values beyond what ATK's ranges say."""
    changes: dict[str, Any] = {"seed": 0}
    for parameter in (*INPUTS, *OUTPUTS):
        value = case.get(parameter.name)
        if isinstance(value, TensorSpec):
            changes[parameter.name] = bare(value)
        elif parameter.kind is Kind.TENSOR_LIST and isinstance(value, tuple):
            changes[parameter.name] = tuple(bare(spec) for spec in value)
    return case.replace(**changes)


def bare(spec: TensorSpec | None) -> TensorSpec | None:
    return None if spec is None else TensorSpec(spec.shape, spec.dtype, spec.format, spec.strides, spec.offset)


def said(form: str, item: Item) -> bool:
    """Whether the format has words for an item."""
    return export_table(form, [item])[1] == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("profile", ASKED)
def test_what_was_written_is_read_back(form: str, profile: str) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(valid_cases(profile), *(s(profile).map(lambda g: g.case) for s in (invalid_cases, boundary_cases))))
    def check(case: Case) -> None:
        item = Item("x", case, profile)
        if not said(form, item):
            return
        (found,) = back(form, [item])
        assert sayable(found.case, form) == sayable(case, form)
        assert not found.remarks
        # What came back is wholly sayable; a default fill that is one number everywhere comes back as that constant, then nothing changes.
        (again,) = back(form, [Item("x", found.case, profile)])
        (third,) = back(form, [Item("x", again.case, profile)])
        assert third.case == again.case
        assert form == "atk" or again.case == found.case

    check()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("profile", ASKED)
def test_nearly_every_generated_call_can_be_said(form: str, profile: str) -> None:
    items = [Item(f"c{i}", g.case, profile) for i, g in enumerate(generate(profile, "all", 24, seed=3))]
    text, written, refused, _ = export_table(form, items)
    assert written >= 21, [reason for _, reason in refused]
    assert text == export_table(form, items)[0], "the same input gives the same bytes"


def test_expected_results_travel(tmp_path: Path) -> None:
    good, bad = call(), call().replace(numKeyValueHeads=3)
    for form in FORMS:
        found = back(form, [Item("good", good, "950-v5"), Item("bad", bad, "950-v5")])
        assert [(f.name, f.expects) for f in found] == [("good", "accept"), ("bad", "reject")]


def test_columns_of_a_table() -> None:
    plain, newer = header(False), header(True)
    assert (len(plain), len(newer)) == (123, 128) and newer[: len(plain)] == plain
    assert plain[:5] == ["case_name", "query_shape", "query_dtype", "query_format", "key_shape"]
    assert {"actual_seq_lengths_kv_data", "dequant_scale1_shape", "scale"} < set(plain) and "q_start_idx_data" not in plain
    assert len(set(newer)) == len(newer)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_travels(form: str, dtype: str) -> None:
    case = call(pseShift=TensorSpec((1, 4, 16, 32), dtype), learnableSink=TensorSpec((4,), dtype, fill=Constant(1)))
    if form == "atk" and dtype.startswith("COMPLEX"):
        with pytest.raises(CannotExport, match="no range for COMPLEX"):
            call_of(Item("x", case, "950-v5"), 1, Remarks())
        return
    (found,) = back(form, [Item("x", case, "950-v5")])
    assert sayable(found.case, form) == sayable(case, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("api", ["v1", "v2", "v3", "v4", "v5"])
def test_every_interface_travels(form: str, api: str) -> None:
    case = call(product="a2", api=api, lse=True, actualSeqLengths=(), actualSeqLengthsKv=(7, 32))
    (found,) = back(form, [Item("x", case, "a2-v3")])
    assert sayable(found.case, form) == sayable(case, form)


@pytest.mark.parametrize("number", [0.1, 1e-300, -0.0, 1 / 3, 3])
@pytest.mark.parametrize("form", FORMS)
def test_numbers_travel_exactly(form: str, number: float) -> None:
    case = call(scaleValue=number, preTokens=-(1 << 63), nextTokens=(1 << 63) - 1)
    (found,) = back(form, [Item("x", case, "950-v5")])
    assert repr(float(found.case.attrs.scaleValue)) == repr(float(number))
    assert (found.case.attrs.preTokens, found.case.attrs.nextTokens) == (-(1 << 63), (1 << 63) - 1)


def test_a_table_says_what_is_no_number() -> None:
    (found,) = back("ut-csv", [Item("x", call(scaleValue="nan"), "950-v5")])
    assert found.case.attrs.scaleValue == "nan"
    with pytest.raises(CannotExport, match="scaleValue nan"):
        call_of(Item("x", call(scaleValue="nan"), "950-v5"), 1, Remarks())


def test_ranges_of_atk() -> None:
    block = TensorSpec((2, 2), "INT32", values=(3, 1, 0, 2))
    case = call(storage="BnNBsD").replace(blockTable=block, queryPaddingSize=TensorSpec((1,), "INT64", values=(4,)))
    case = case.replace(query=TensorSpec((2, 4, 16, 64), "FLOAT16", fill=Uniform(-0.5, 3.0)))
    remarks = Remarks()
    made = call_of(Item("x", case, "950-v5"), 1, remarks)
    ranges = {item["name"]: item["range_values"] for item in made["inputs"] if isinstance(item, dict)}
    assert ranges["query"] == [-0.5, 3.0] and ranges["blockTableOptional"] == [0, 3] and ranges["queryPaddingSizeOptional"] == [4, 4]
    assert ranges["pseShiftOptional"] == ["None"] and ranges["attentionOut"] == [0, 0]
    (told,) = remarks.lines
    assert "key, value, blockTable" in told and "query" not in told
    (found,) = back("atk", [Item("x", case, "950-v5")])
    assert found.case.inputs.query == case.inputs.query
    assert found.case.inputs.queryPaddingSize is not None and found.case.inputs.queryPaddingSize.fill == Constant(4)
    assert found.case.outputs == case.outputs
    assert is_integer("BOOL") and not is_integer("HIFLOAT8")


ODD = "TND\n\"',;|é 中 \r x"


def test_odd_text_travels() -> None:
    for form in FORMS:
        item = Item(f"\x1b[31m{ODD}\x00", call(inputLayout=ODD), "950-v5")
        text = export_table(form, [item])[0]
        assert "\x1b" not in text and "\x00" not in text
        (found,) = back(form, [item])
        assert found.case.attrs.inputLayout == ODD
        assert "\n" not in found.name


def test_strides_travel_in_newer_tables() -> None:
    case = call(storage="tensor_list")
    assert case.inputs.key is not None
    first = TensorSpec((1, 2, 32, 64), "FLOAT16", strides=(8192, 4096, 128, 1))
    case = case.replace(key=(first, *case.inputs.key[1:]))
    (found,) = back("ut-csv", [Item("x", case, "950-v5")])
    assert sayable(found.case, "ut-csv") == sayable(case, "ut-csv")
    assert "key_stride" in next(csv.reader(io.StringIO(export_table("ut-csv", [Item("x", case, "950-v5")])[0])))
    assert set(WITH_STRIDES) == {"key", "value", "keyAntiquantScale", "valueAntiquantScale", "keyRope"}


STRIDED = TensorSpec((2, 4, 16, 64), "FLOAT16", strides=(8192, 2048, 128, 1))
KEY = TensorSpec((2, 2, 32, 64), "FLOAT16")
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("both", {"query": STRIDED}, "strides"),
    ("both", {"query": TensorSpec((2, 4, 16, 64), "FLOAT16", offset=3)}, "offset"),
    ("both", {"key": ()}, "list"),
    ("both", {"key": (None,)}, "list"),
    ("both", {"inputLayout": None}, "inputLayout None"),
    ("ut-csv", {"key": (KEY, None)}, "null inside a list"),
    ("ut-csv", {"key": (KEY, TensorSpec((2, 2, 32, 64), "BFLOAT16"))}, "one dtype"),
    ("ut-csv", {"learnableSink": TensorSpec((), "FLOAT16")}, "without axes"),
    ("ut-csv", {"qStartIdx": (5,)}, "values of qStartIdx"),
    ("ut-csv", {"inputLayout": " BNSD"}, "inputLayout ' BNSD'"),
    ("ut-csv", {"inputLayout": ""}, "inputLayout ''"),
    ("atk", {"key": (TensorSpec((2, 2, 32, 64), "FLOAT16", "FRACTAL_NZ"),)}, "format FRACTAL_NZ"),
    ("atk", {"inputLayout": "None"}, "inputLayout 'None'"),
    ("atk", {"inputLayout": "B\x00"}, "NUL"),
    ("atk", {"learnableSink": TensorSpec((4,), "FLOAT16", values=("inf", 1, 1, 1))}, "inf or NaN"),
)


@pytest.mark.parametrize(("form", "change", "says"), REFUSED, ids=[f"{i}-{says.split()[0]}" for i, (_, _, says) in enumerate(REFUSED)])
def test_refused_where_the_call_would_be_another(form: str, change: dict[str, Any], says: str) -> None:
    item, good = Item("odd", call().replace(**change), "950-v5"), Item("good", call(), "950-v5")
    for each in FORMS if form == "both" else (form,):
        text, written, refused, _ = export_table(each, [item, good])
        assert written == 1 and [(i.name, says in reason) for i, reason in refused] == [("odd", True)], refused
        assert "odd" not in text


def test_a_parameter_of_a_newer_interface_is_refused() -> None:
    case = call(api="v3").replace(queryQuantMode=3, learnableSink=TensorSpec((4,), "FLOAT16"))
    for form in FORMS:
        _, written, refused, _ = export_table(form, [Item("x", case, "950-v3")])
        assert not written and refused[0][1] == "V3 has no learnableSink, queryQuantMode"


def test_null_entries_and_empty_lengths_travel_through_atk() -> None:
    case = call(actualSeqLengths=()).replace(key=(KEY, None, KEY))
    (found,) = back("atk", [Item("x", case, "950-v5")])
    assert found.case.inputs.key is not None and [spec is None for spec in found.case.inputs.key] == [False, True, False]
    assert found.case.inputs.actualSeqLengths == ()


def test_what_a_table_loses_is_told() -> None:
    case = call("TND", storage="BnBsH", seed=5)
    remarks = Remarks()
    row = row_of(Item("x", case, "950-v5"), remarks)
    assert remarks.lines == ["a table does not hold the values of blockTable", "the seed and tensor values are not part of a table"]
    assert row["actual_seq_lengths_kv_data"] == "32 32" and row["block_table_shape"] == "2 2"
    _, _, _, told = export_table("ut-csv", [Item("x", case, "950-v5"), Item("y", mla(), "950-v5")])
    assert "(1 of 2 cases)" in told[0]


def test_an_atk_file_has_the_fields_of_its_version() -> None:
    (made,) = json.loads(export_table("atk", [Item("x", call(), "950-v5")])[0])
    assert made["version"] == "v2.1" and made["aclnn_name"] == "aclnnFusedInferAttentionScoreV5" and made["standard"] == {"acc": "default"}
    names = [(item[0] if isinstance(item, list) else item)["name"] for item in made["inputs"]]
    assert names[:4] == ["query", "key", "value", "pseShiftOptional"] and names[-2:] == ["attentionOut", "softmaxLse"]
    assert len(names) == 48
    assert PROFILES["950-v5"].api == "v5"
