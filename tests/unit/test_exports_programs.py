"""Scripts, programs and test files: what they expect is what the gate lets pass, and any text in a case leaves them valid."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.campaign.corpus import Entry, Got
from fiafuzz.campaign.execute import poisoned
from fiafuzz.campaign.exports import PROGRAMS, CannotExport, Item, Remarks
from fiafuzz.campaign.exports.common import c_string, comment, python_literal
from fiafuzz.campaign.exports.expectation import MAX_CHECKED, Expectation, expect, spread
from fiafuzz.campaign.exports.memory import axes_of, packed, place_of
from fiafuzz.campaign.results import Element, Foreseen
from fiafuzz.campaign.triage import Signature
from fiafuzz.model.case import Case, Normal, TensorSpec, case_from_dict
from fiafuzz.model.codecs import decode, encode, pack_int4
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize, strided_buffer
from oracles.precision import judge_outputs
from oracles.reference import reference
from strategies.cases import generate

from .plain_calls import antiquant, call, full_mla, mla, old, per_tensor

SMALL = call(B=1, N=2, KV_N=1, S=2, KV_S=5, D=16, lse=True)


def outputs_of(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """What the cpu kernel computes."""
    found = poisoned(case)
    assert CpuBackend().run(case, Scene(case), materialize(case), found).kind == "ok"
    return found


def broken_claims(expected: Expectation, case: Case, outputs: dict[str, np.ndarray[Any, Any]]) -> list[tuple[str, int]]:
    """The checks that outputs fail."""
    found = []
    for checked in expected.checked:
        numbers = np.asarray(decode(getattr(case.outputs, checked.output).dtype, outputs[checked.output]), np.float64).reshape(-1)
        found += [(checked.output, c.index) for c in checked.claims if not c.low <= numbers[c.index] <= c.high]
    return found


def entry(case: Case, code: str = "F101", worst: tuple[Element, ...] = (), **more: Any) -> Entry:
    fields: dict[str, Any] = {
        "id": f"{code}-0123456789", "title": "wrong values", "signature": Signature("cpu", code, None, ()), "profile": "950-v5",
        "case": case, "original": "00", "expected": Foreseen("accept", (0,)), "got": Got("ok", text="off", worst=worst),
        "differences": ("lse: on",), "environment": {"torch": "2"}, "seed": 7, "first_seen": "2026-01-01T00:00:00+00:00",
        "reproduce": "fiafuzz replay x",
    }  # fmt: skip
    return Entry(**{**fields, **more})


# ---- what is expected -----------------------------------------------------------------------------

SCALE = TensorSpec((1,), "FLOAT32")
QUANTISED = (
    antiquant(kv_dtype="INT8"), antiquant(kv_dtype="FLOAT8_E4M3FN", dtype="BFLOAT16"), antiquant(kv_dtype="INT4"), per_tensor(S=3),
    full_mla(dtype="FLOAT8_E4M3FN", B=1), full_mla(dtype="HIFLOAT8", B=1), mla(lse=True),
    *(call(S=3, out_dtype=dtype, quantScale2=SCALE) for dtype in ("INT8", "HIFLOAT8", "FLOAT8_E4M3FN")),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(QUANTISED)))
def test_a_right_kernel_is_inside_and_a_wrong_one_outside(number: int) -> None:
    case = QUANTISED[number]
    expected = expect(Item("x", case, "950-v5"), Remarks())
    assert expected.answer == "accept" and expected.checked and expected.checked[0].claims
    outputs = outputs_of(case)
    assert broken_claims(expected, case, outputs) == []
    dtype = case.outputs.attentionOut.dtype  # type: ignore[union-attr]
    numbers = np.asarray(decode(dtype, outputs["attentionOut"]), np.float64)
    step = max(1.0, float(np.abs(numbers).max()))
    outputs["attentionOut"] = encode(dtype, numbers + step, overflow="saturate")
    assert len(broken_claims(expected, case, outputs)) > len(expected.checked[0].claims) // 2


@pytest.mark.parametrize("profile", ["950-v5", "a2-v3"])
def test_no_alarm_where_the_gate_gives_none(profile: str) -> None:
    """Outputs with noise of many sizes: whatever passes the row gate passes the checks of a program."""
    random, passed, failed, caught = np.random.default_rng(3), 0, 0, 0
    for item in generate(profile, "valid", 10, seed=21):
        case = item.case
        scene, tensors = Scene(case), materialize(case)
        if sum(a.size for a in poisoned(case).values()) > 40_000 or scene.empty_case:
            continue
        wanted = reference(case, tensors, scene=scene)
        expected = expect(Item("x", case, profile), Remarks())
        for size in (0.0, 2.0**-14, 2.0**-10, 2.0**-8, 2.0**-5):
            outputs = {}
            for name, numbers in wanted.outputs.items():
                noise = random.uniform(-size, size, numbers.shape)
                dtype = getattr(case.outputs, name).dtype
                with np.errstate(all="ignore"):
                    outputs[name] = encode(dtype, np.where(np.isfinite(numbers), numbers * (1 + noise), numbers), overflow="saturate")
            gate = judge_outputs(case, scene, wanted, outputs, "fiafuzz").gate_passed
            wrong = broken_claims(expected, case, outputs)
            assert not (gate and wrong), (case.digest, size, wrong[:3])
            passed, failed, caught = passed + gate, failed + (not gate), caught + bool(wrong)
    assert passed > 6 and failed > 4 and caught > failed // 2


def test_checks_are_spread_over_large_outputs() -> None:
    case = call(B=2, N=4, S=40, KV_S=8, D=64)
    (checked, *_) = expect(Item("x", case, "950-v5"), Remarks()).checked
    assert checked.comparable == 2 * 4 * 40 * 64 and 900 < len(checked.claims) <= MAX_CHECKED
    indices = np.array([c.index for c in checked.claims])
    assert len(set(indices % 64)) == 64 and len(set(indices // 64 % 40)) == 40 and len(set(indices)) == len(indices)
    assert spread(np.arange(5), 9) == [0, 1, 2, 3, 4]


def test_the_elements_of_a_finding_come_first_with_their_own_tolerance() -> None:
    odd = (Element("softmaxLse", (0, 0, 1, 0), "inf", 1.0, 0.5), Element("attentionOut", (9,), 1, 1, 1))
    worst = (Element("attentionOut", (0, 1, 1, 3), 0.5, 0.75, 0.001), *odd)
    expected = expect(Item("x", SMALL, "950-v5", entry(SMALL, worst=worst)), Remarks())
    first = expected.checked[0].claims[0]
    assert (first.index, first.expected) == (51, 0.5) and 0.498 < first.low < 0.4991 and 0.5009 < first.high < 0.502
    assert expected.checked[0].comparable == 64 and len(expected.checked[0].claims) == 64


def test_answers_other_than_accept() -> None:
    refused = expect(Item("x", call().replace(numKeyValueHeads=3), "950-v5"), Remarks())
    assert (refused.answer, refused.codes, refused.checked) == ("reject", (561002,), ())
    assert "must be refused with 561002" in refused.must[0]
    dies = expect(Item("x", SMALL, "950-v5", entry(SMALL, "F301", expected=Foreseen("crash", (), ("FIA-CO-001",)))), Remarks())
    assert dies.answer == "dies" and "crash" in dies.must[0]
    disputed = Foreseen("unspecified", (0, 561002), document="accept", source="reject")
    either = expect(Item("x", SMALL, "950-v5", entry(SMALL, expected=disputed)), Remarks())
    assert (either.answer, either.codes) == ("either", (561002,)) and either.checked and "documents say accept" in either.must[1]
    assert expect(Item("x", SMALL, "950-v5", entry(SMALL, "F105")), Remarks()).runs == 5


def test_what_a_program_of_one_call_cannot_show_is_said() -> None:
    for code, says in (("F106", "relation between two calls"), ("F101", "names no element")):
        remarks = Remarks()
        expect(Item("x", SMALL, "950-v5", entry(SMALL, code)), remarks)
        assert any(says in line for line in remarks.lines), remarks.lines


# ---- memory ---------------------------------------------------------------------------------------


def test_bytes_in_memory() -> None:
    values = np.array([-8, 7, 3, -1, 0, 5, -2, 1], np.int8)
    assert packed("INT4", values) == pack_int4(values).tobytes()
    assert packed("FLOAT4_E2M1", np.array([1, 15, 7], np.uint8)) == bytes([0xF1, 0x07])
    assert packed("BFLOAT16", np.array([0x3F80], np.uint16)) == b"\x80\x3f"
    spec = TensorSpec((2, 3, 4), "FLOAT16", strides=(40, 12, 3), offset=7)
    dense = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    buffer = strided_buffer(spec, dense)
    for index in range(24):
        assert buffer[place_of(spec, index)] == dense[axes_of(spec.shape, index)] == index


# ---- programs -------------------------------------------------------------------------------------

ODD = 'a"b\'c\\n"""\'\'\' */ // ??/ \n\r\t\x00\x1b[31m {{ 7*7 }} {% x %} é中 \u202e\ud800 \\'


def texts(item: Item, **more: Any) -> dict[str, str]:
    return {form: program.export(item, program.file_of(item), beside=False).text for form, program in PROGRAMS.items()}


def outside_of_strings(text: str) -> str:
    """A C++ text without string literals and line comments."""
    return re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*', "", text)


def test_odd_text_leaves_programs_valid() -> None:
    odd_entry = entry(SMALL, title=ODD, differences=(ODD,), environment={ODD: ODD}, got=Got("ok", text=ODD))
    item = Item(ODD, SMALL.replace(inputLayout='BN"SD*/\\\n é'), "950-v5", odd_entry)
    for form, text in texts(item).items():
        assert text.isascii() and "\x1b" not in text, form
        assert "49" not in text.split("\n")[1], form
        if form == "cpp":
            plain = outside_of_strings(text)
            assert '"' not in plain and plain.count("/*") == plain.count("*/") == 0 and "??" not in text
            assert not re.search(r"//[^\n]*\\\n", text), "a comment does not run on into the next line"
            assert plain.count("{") == plain.count("}")
            assert 'char inputLayout[] = "BN\\042SD*/\\134\\012 \\303\\251";' in text
        else:
            tree = ast.parse(text)
            compile(text, "x", "exec")
            list(tokenize.generate_tokens(io.StringIO(text).readline))
            strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            if form == "python":
                assert 'BN"SD*/\\\n é' in strings


def test_literals() -> None:
    assert c_string("?\"\\\n1é") == '"\\077\\042\\134\\0121\\303\\251"'
    for bad in ("a\x00", "\ud800"):
        with pytest.raises(CannotExport):
            c_string(bad)
    assert comment("x */ \\\n??/ é") == "x */ / ? ?/ /xe9"
    for value in ((1,), [1.5, "é\n'"], None, True, -0.0, 1 << 63):
        assert repr(ast.literal_eval(python_literal(value))) == repr(value)
    assert python_literal(float("-inf")) == 'float("-inf")'


@pytest.mark.parametrize("profile", ["950-v5", "a2-v3", "a3-v3", "a2-v5", "950-v5-2026.08"])
def test_programs_of_generated_calls(profile: str) -> None:
    made = dict.fromkeys(PROGRAMS, 0)
    for i, generated in enumerate(generate(profile, "all", 8, seed=8)):
        item = Item(f"{profile}-{i}", generated.case, profile)
        for form, program in PROGRAMS.items():
            file = program.file_of(item)
            try:
                one = program.export(item, file, beside=True)
            except CannotExport as error:
                assert form != "pytest" and "\n" not in str(error)
                continue
            assert i > 1 or one == program.export(item, file, beside=True), "the same input gives the same bytes"
            assert one.text.isascii()
            made[form] += 1
            if file.endswith(".py"):
                compile(one.text, file, "exec")
            else:
                plain = outside_of_strings(one.text)
                assert '"' not in plain and all(plain.count(a) == plain.count(b) for a, b in ("{}", "()", "[]"))
    assert made["pytest"] == 8 and made["cpp"] >= 7 and made["python"] >= (0 if profile == "a2-v5" else 3)


CANNOT: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("two keys", {"key": (TensorSpec((1, 2, 32, 64), "FLOAT16"),) * 2}, "list of 2"),
    ("null output", {"attentionOut": None}, "attentionOut"),
    ("null layout", {"inputLayout": None}, "inputLayout null"),
    ("pse type", {"pseType": 2}, "pseType"),
    ("start", {"qStartIdx": (3,)}, "qStartIdx"),
    ("format", {"query": TensorSpec((2, 4, 16, 64), "FLOAT16", "FRACTAL_NZ")}, "format"),
    ("nul", {"inputLayout": "BN\x00SD"}, "NUL"),
    ("no lse", {"softmaxLseFlag": True}, "softmaxLse"),
)


@pytest.mark.parametrize(("change", "says"), [(c, s) for _, c, s in CANNOT], ids=[n for n, _, _ in CANNOT])
def test_what_torch_cannot_say(change: dict[str, Any], says: str) -> None:
    item = Item("x", call().replace(**change), "950-v5")
    with pytest.raises(CannotExport, match=says):
        PROGRAMS["python"].export(item, "x.py", beside=True)
    if "NUL" not in says:
        assert "nullptr" in PROGRAMS["cpp"].export(item, "x.cpp", beside=True).text


@pytest.mark.parametrize(("api", "product"), [("v5", "a2"), ("v1", "a3"), ("v3", "950")])
def test_interfaces_that_torch_does_not_reach(api: str, product: str) -> None:
    with pytest.raises(CannotExport, match=r"does not reach.*--as cpp"):
        PROGRAMS["python"].export(Item("x", old(call(), product, api), f"{product}-v3"), "x.py", beside=True)


def test_torch_names_follow_the_operator() -> None:
    text = PROGRAMS["python"].export(Item("x", old(call(lse=True), "a2"), "a2-v3"), "x.py", beside=False).text
    assert "npu_fused_infer_attention_score.out(" in text and '"softmax_lse_flag": True' in text
    assert "aclnnFusedInferAttentionScoreV3" in text
    text = PROGRAMS["python"].export(Item("x", full_mla(dtype="HIFLOAT8", B=1), "950-v5"), "x.py", beside=False).text
    assert "npu_fused_infer_attention_score_v2.out(" in text and '"key_dtype": 290,  # torch_npu.hifloat8' in text
    text = PROGRAMS["python"].export(Item("x", SMALL, "950-v5"), "x.py", beside=False).text
    assert "fiafuzz" not in text.replace("fiafuzz replay", ""), "a script needs no fiafuzz"


KEY = TensorSpec((1, 2, 2000, 64), "FLOAT32", fill=Normal())
QUERY = TensorSpec((1, 4, 64, 64), "FLOAT32", fill=Normal())
LARGE = call(B=1, S=64, KV_S=2000, query=QUERY, key=(KEY,), value=(KEY,), attentionOut=TensorSpec((1, 4, 64, 64), "FLOAT32"))


def test_large_tensors_lie_beside_the_program(tmp_path: Path) -> None:
    item = Item("large", LARGE, "950-v5")
    for form, file, side in (("python", "it.py", "it.npz"), ("cpp", "it.cpp", "it.bin")):
        with pytest.raises(CannotExport, match="with -o it lies beside it"):
            PROGRAMS[form].export(item, file, beside=False)
        found = PROGRAMS[form].export(item, file, beside=True)
        assert found.side_name == side and side in found.text and len(found.text) < 100_000
        if form == "python":
            (tmp_path / side).write_bytes(found.side)
            with np.load(tmp_path / side, allow_pickle=False) as arrays:
                assert arrays["key.0"].tobytes() == materialize(LARGE).many("key")[0].tobytes()  # type: ignore[union-attr]
        else:
            assert materialize(LARGE).one("query").tobytes() in found.side  # type: ignore[union-attr]


def test_a_call_whose_tensors_cannot_be_made() -> None:
    huge = TensorSpec((2, 4, 16, 1 << 40), "FLOAT16")
    item = Item("x", call().replace(query=huge), "950-v5")
    found = PROGRAMS["cpp"].export(item, "x.cpp", beside=False)
    assert "hold no data" in found.remarks[0] and "1099511627776LL" in found.text
    with pytest.raises(CannotExport, match="hold no data"):
        PROGRAMS["python"].export(item, "x.py", beside=False)
    negative = call().replace(query=TensorSpec((-1, 4, 16, 64), "FLOAT16"), attentionOut=TensorSpec((-1, 4, 16, 64), "FLOAT16"))
    assert "Ints{-1, 4, 16, 64}" in PROGRAMS["cpp"].export(Item("x", negative, "950-v5"), "x.cpp", beside=False).text


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_gives_a_program(dtype: str) -> None:
    case = call(pseShift=TensorSpec((1, 4, 16, 32), dtype), attentionOut=TensorSpec((2, 4, 16, 64), dtype))
    text = PROGRAMS["cpp"].export(Item("x", case, "950-v5"), "x.cpp", beside=False).text
    assert f"T_{dtype}" in text


def test_names_of_files() -> None:
    assert Item("../../etc/passwd", SMALL, "950-v5").stem == "fia_etc_passwd"
    assert Item("é", SMALL, "950-v5").stem == f"fia_{SMALL.digest}"
    assert PROGRAMS["pytest"].file_of(Item("x", SMALL, "950-v5", entry(SMALL))) == "test_fia_F101_0123456789.py"
    text = PROGRAMS["cpp"].export(Item("x", SMALL, "950-v5"), "a b;rm.cpp", beside=False).text
    assert "rm" not in text.split("#include")[0].replace("for", "") and "g++ -std=c++11 -O1 fia_x.cpp" in text


def test_a_test_file_holds_the_whole_case_or_entry() -> None:
    bare = PROGRAMS["pytest"].export(Item("x", SMALL, "950-v5"), "test_x.py", beside=False).text
    whole = PROGRAMS["pytest"].export(Item("x", SMALL, "950-v5", entry(SMALL)), "test_x.py", beside=False).text
    for text, name in ((bare, "CASE"), (whole, "ENTRY")):
        (value,) = [node.value for node in ast.parse(text).body if isinstance(node, ast.Assign) and node.targets[0].id == name]  # type: ignore[attr-defined]
        data = json.loads(ast.literal_eval(value))
        assert case_from_dict(data if name == "CASE" else data["case"]) == SMALL
