"""predict, reference, judge, generate, constraints, explain, import: command lines with their output and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from .calls import line, plain
from .conftest import Ran

Run = Callable[..., Ran]


def test_predict_reads_bare_cases_records_and_documents(fiafuzz: Run, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(json.dumps(plain(), indent=1))
    ran = fiafuzz("predict", "f.json")
    assert (ran.code, ran.out) == (0, "f.json: accept (950-v5, basis both)\n")
    lines = line(plain()) + line(plain(sparseMode=7), name="odd", profile="950-v5-2026.08")
    ran = fiafuzz("predict", "-", "--json", stdin=lines)
    first, second = map(json.loads, ran.out.splitlines())
    assert (first["verdict"], first["codes"], first["rules"]) == ("accept", [0], [])
    assert (second["name"], second["verdict"], second["codes"], second["stage"], second["profile"]) == (
        "odd",
        "reject",
        [561002],
        "checker",
        "950-v5-2026.08",
    )
    assert {"id", "level", "cites"} <= set(second["rules"][0])


def test_predict_profile_option_wins(fiafuzz: Run) -> None:
    ran = fiafuzz("predict", "--profile", "950-v3", "--json", stdin=line(plain(), name="x", profile="950-v5"))
    assert json.loads(ran.out)["codes"] == [361001]


def test_predict_goes_on_after_a_bad_line(fiafuzz: Run) -> None:
    ran = fiafuzz("predict", "-", stdin=line(plain(), name="a") + "{\n" + line(plain(), name="b"))
    assert ran.code == 2
    assert [text.split(":")[0] for text in ran.out.splitlines()] == ["a", "b"]
    assert ran.complaint == "fiafuzz: <stdin>:2: Input data was truncated"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Input data was truncated"),
        (line({**plain(), "seed": "x"}), "Expected `int`, got `str` (at $.seed)"),
        (line({**plain(), "inputs": {"query": {"shape": [1], "dtype": "FLOAT99"}}}), "unknown dtype 'FLOAT99'"),
        (line({**plain(), "inputs": {"nosuch": None}}), "unknown field `nosuch` (at $.inputs)"),
        (line({**plain(), "inputs": {"query": {"shape": [10**30], "dtype": "INT8"}}}), "at $.inputs.query.shape[0]"),
        ("[" * 100000, ""),
        (line(plain(), profile="950-v9"), "unknown profile '950-v9'"),
    ],
)
def test_malformed_input_is_one_line_and_exit_2(fiafuzz: Run, text: str, says: str) -> None:
    ran = fiafuzz("predict", "-", stdin=text)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.complaint


def test_unreadable_files(fiafuzz: Run, tmp_path: Path) -> None:
    assert "no such file" in fiafuzz("predict", "nosuch.json").complaint
    assert "is a directory" in fiafuzz("predict", str(tmp_path)).complaint
    assert fiafuzz("predict", "nosuch.json").code == 2


@pytest.mark.parametrize(
    "verb",
    [
        "predict",
        "generate",
        "fuzz",
        "replay",
        "reference",
        "judge",
        "shrink",
        "constraints",
        "import",
        "coverage",
        "backends",
        "doctor",
        "explain",
    ],
)
def test_help_of_every_verb(fiafuzz: Run, verb: str) -> None:
    ran = fiafuzz(verb, "--help")
    assert ran.code == 0 and ran.out.startswith(f"Usage: fiafuzz {verb}")


def test_usage_errors(fiafuzz: Run) -> None:
    for arguments in (
        ["nosuch"],
        ["predict", "--nosuch"],
        ["generate", "--mode", "odd"],
        ["fuzz", "--max-time", "soon"],
        ["fuzz", "--profile", "950"],
        ["fuzz", "--backend", "nosuch"],
        ["fuzz", "--select", "nosuch"],
        ["generate", "--rule", "FIA-XX-999"],
        ["explain", "F999"],
        ["fuzz", "--standard", "nosuch"],
        ["replay", "nosuch"],
        ["replay", "--backend", "nosuch"],
    ):
        ran = fiafuzz(*arguments)
        assert ran.code == 2, arguments
        assert ran.complaint


def test_generate_is_reproducible_and_predicted_valid(fiafuzz: Run) -> None:
    first = fiafuzz("generate", "-n", "40", "--seed", "5")
    assert first.code == 0 and first.out == fiafuzz("generate", "-n", "40", "--seed", "5").out
    assert first.out != fiafuzz("generate", "-n", "40", "--seed", "6").out
    predicted = [json.loads(text) for text in fiafuzz("predict", "-", "--json", stdin=first.out).out.splitlines()]
    assert [p["verdict"] for p in predicted] == ["accept"] * 40


def test_generate_prints_its_seed(fiafuzz: Run) -> None:
    ran = fiafuzz("generate", "-n", "1")
    seed = ran.err.strip().removeprefix("seed ")
    assert fiafuzz("generate", "-n", "1", "--seed", seed).out == ran.out


def test_generate_invalid_names_what_it_broke(fiafuzz: Run) -> None:
    made = fiafuzz("generate", "-n", "60", "--seed", "5", "--mode", "invalid")
    records = [json.loads(text) for text in made.out.splitlines()]
    assert len(records) == 60 and all(r["rule"] and r["side"] and r["fault"] for r in records)
    predicted = [json.loads(text) for text in fiafuzz("predict", "-", "--json", stdin=made.out).out.splitlines()]
    named = [r["rule"] in [x["id"] for x in p["rules"]] and p["verdict"] == "reject" for r, p in zip(records, predicted)]
    assert sum(named) >= 58


def test_reference_and_judge(fiafuzz: Run, tmp_path: Path) -> None:
    case = plain()
    rng = np.random.default_rng(3)
    q, k, v = (
        rng.integers(-8, 9, size=shape).astype(np.float16) / np.float16(4) for shape in ((1, 2, 3, 16), (1, 2, 5, 16), (1, 2, 5, 16))
    )
    np.savez(tmp_path / "in.npz", **{"in:query": q, "in:key.0": k, "in:value.0": v})
    (tmp_path / "c.json").write_text(json.dumps(case))
    ran = fiafuzz("reference", "c.json", "--inputs", "in.npz", "-o", "out.npz")
    assert ran.code == 0, ran.err
    with np.load(tmp_path / "out.npz") as found:
        expected, compare = found["out:attentionOut"], found["compare:attentionOut"]
    s = np.einsum("bnid,bnjd->bnij", q.astype(float), k.astype(float)) * 0.25
    p = np.exp(s - s.max(-1, keepdims=True))
    wanted = np.einsum("bnij,bnjd->bnid", p / p.sum(-1, keepdims=True), v.astype(float))
    assert compare.all() and np.allclose(expected, wanted, atol=1e-12)
    np.savez(tmp_path / "npu.npz", **{"out:attentionOut": wanted.astype(np.float16)})
    ran = fiafuzz("judge", "c.json", "--inputs", "in.npz", "--outputs", "npu.npz")
    assert ran.code == 0 and ran.out.startswith("c.json:1: pass ")
    bad = wanted.astype(np.float16)
    bad[0, 1, 2, 3] += np.float16(0.5)
    np.savez(tmp_path / "bad.npz", **{"out:attentionOut": bad})
    ran = fiafuzz("judge", "c.json", "--inputs", "in.npz", "--outputs", "bad.npz")
    assert ran.code == 1 and "F101 wrong values" in ran.out and "[0, 1, 2, 3]" in ran.out
    ran = fiafuzz("judge", "c.json", "--inputs", "in.npz", "--outputs", "bad.npz", "--json")
    assert json.loads(ran.out)["outputs"][0]["worst"][0]["index"] == [0, 1, 2, 3]


def test_dumps_that_cannot_be_used(fiafuzz: Run, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(plain()))
    np.savez(tmp_path / "pickled.npz", **{"out:attentionOut": np.array([{}], dtype=object)})
    (tmp_path / "trash.npz").write_bytes(b"PK\x03\x04 nothing")
    np.savez(tmp_path / "shape.npz", **{"out:attentionOut": np.zeros((2, 2), np.float16)})
    for name in ("pickled.npz", "trash.npz", "shape.npz", "nosuch.npz", "."):
        ran = fiafuzz("judge", "c.json", "--outputs", name)
        assert ran.code == 2, name
        assert name in ran.complaint or "out:attentionOut" in ran.complaint
    assert fiafuzz("reference", "c.json", "-o", "nodir/out.npz").code == 2
    assert not list(tmp_path.glob("*.tmp"))


def test_reference_of_impossible_shapes(fiafuzz: Run, tmp_path: Path) -> None:
    for shape in ([1, 2, -3, 16], [2**40, 2, 3, 16], [2**20, 2**20, 2**20, 2**20]):
        case = plain()
        case["inputs"]["query"]["shape"] = shape
        (tmp_path / "c.json").write_text(json.dumps(case))
        ran = fiafuzz("reference", "c.json", "-o", "out.npz")
        assert ran.code == 2 and "c.json" in ran.complaint
        assert not (tmp_path / "out.npz").exists()


def test_constraints(fiafuzz: Run) -> None:
    listed = json.loads(fiafuzz("constraints", "list", "--json").out)["rules"]
    assert len(listed) > 300
    assert {"id", "title", "group", "level", "profiles", "cites", "enforced_by", "status", "faults", "boundaries"} <= set(listed[0])
    shown = fiafuzz("constraints", "show", listed[0]["id"])
    assert shown.code == 0 and listed[0]["title"] in shown.out
    assert fiafuzz("constraints", "list", "--group", "pse").err.endswith("rules\n")
    assert "did you mean" in fiafuzz("constraints", "show", listed[0]["id"] + "x").complaint


def test_constraints_lint_is_clean(fiafuzz: Run) -> None:
    ran = fiafuzz("constraints", "lint")
    assert (ran.code, ran.out) == (0, "")


def test_explain(fiafuzz: Run) -> None:
    codes = fiafuzz("explain").out
    for code in ("F101", "F106", "F201", "F203", "F301", "F303", "F401"):
        assert code in codes
    assert "Meaning:" in fiafuzz("explain", "f201").out


def test_backends_and_doctor(fiafuzz: Run) -> None:
    names = [b["name"] for b in json.loads(fiafuzz("backends", "--json").out)["backends"]]
    assert {"cpu", "torch-sdpa-math", "torch-sdpa-flash"} <= set(names)
    assert sum(n.startswith("faulty:") for n in names) >= 60
    ran = fiafuzz("doctor")
    assert ran.code == 0 and "backend cpu" in ran.out
    assert json.loads(fiafuzz("doctor", "--json").out)["default_backend_usable"] is True


def test_import_of_a_table(fiafuzz: Run, tmp_path: Path) -> None:
    tensors = ("query", "key", "value", "attention_out")
    header = ",".join(
        ["case_name", *(f"{t}_{p}" for t in tensors for p in ("shape", "dtype")), "num_heads", "input_layout", "expectResult"]
    )
    rows = [
        "good,1 2 3 16,FLOAT16,1 2 5 16,FLOAT16,1 2 5 16,FLOAT16,1 2 3 16,FLOAT16,2,BNSD,SUCCESS",
        "odd,1 2 3 16,FLOAT99,1 2 5 16,FLOAT16,1 2 5 16,FLOAT16,1 2 3 16,FLOAT16,2,BNSD,FAILED",
    ]
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    ran = fiafuzz("import", "t.csv", "--from", "ut-csv", "-o", "t.jsonl")
    assert ran.code == 0 and "1 cases, 1 rows not mapped" in ran.err
    assert "odd: query: dtype 'FLOAT99' is unknown" in ran.complaint
    assert json.loads((tmp_path / "t.jsonl").read_text())["expected"] == {"verdict": "accept"}
    assert fiafuzz("predict", "t.jsonl").out.startswith("good: accept")
    assert fiafuzz("import", "nosuch.csv", "--from", "ut-csv").code == 2
    assert fiafuzz("import", "t.csv", "--from", "atk").code == 2


def test_help_and_predict_start_quickly(fiafuzz: Run) -> None:
    # Not a timing: what must not be imported. Start-up itself is measured in tests/benchmarks.
    script = (
        "import sys; from fiafuzz.cli.main import main\n"
        "try: main(['predict', '-'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'hypothesis', 'pandas', 'numpy', 'ml_dtypes', 'rich') if m in sys.modules], file=sys.stderr)"
    )
    import subprocess
    import sys

    from .conftest import ROOT

    done = subprocess.run([sys.executable, "-c", script], input=line(plain()).encode(), capture_output=True, cwd=ROOT, check=True)
    assert done.stderr.decode().splitlines()[-1] == "[]"


def test_judge_by_hand_sees_a_single_lse_that_is_slightly_off(fiafuzz: Run, tmp_path: Path) -> None:
    case = plain(softmaxLseFlag=True)
    case["outputs"]["softmaxLse"] = {"shape": [1, 2, 3, 1], "dtype": "FLOAT32"}
    (tmp_path / "c.json").write_text(json.dumps(case))
    assert fiafuzz("reference", "c.json", "-o", "ideal.npz").code == 0
    with np.load(tmp_path / "ideal.npz") as found:
        out, lse = found["out:attentionOut"].astype(np.float16), found["out:softmaxLse"].astype(np.float32)
    np.savez(tmp_path / "good.npz", **{"out:attentionOut": out, "out:softmaxLse": lse})
    assert fiafuzz("judge", "c.json", "--outputs", "good.npz").code == 0
    lse[0, 1, 2, 0] += 2e-5
    np.savez(tmp_path / "off.npz", **{"out:attentionOut": out, "out:softmaxLse": lse})
    ran = fiafuzz("judge", "c.json", "--outputs", "off.npz")
    assert ran.code == 1 and "[0, 1, 2, 0]" in ran.out
