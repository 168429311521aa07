"""Exported scripts and programs on the stand-in: they send the very same call, and tell a right answer from a wrong one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fiafuzz.campaign.exports import PROGRAMS, Item
from fiafuzz.model.case import Case, TensorSpec, Uniform, case_to_dict
from fiafuzz.model.profiles import profile_for
from oracles.constraints.predict import predict
from strategies.cases import generate
from tests.standin_cann.build import Build
from tests.standin_cann.cpp import compile_program, cpp_compiler
from tests.standin_cann.environment import SOCS
from tests.unit.plain_calls import antiquant, call, full_mla, old, per_tensor

pytestmark = pytest.mark.standin
Environment = Callable[..., dict[str, str]]


def strided(case: Case) -> Case:
    """The call with a query that has gaps and an offset."""
    assert case.inputs.query is not None
    b, n, s, d = case.inputs.query.shape
    return case.replace(query=TensorSpec((b, n, s, d), case.inputs.query.dtype, strides=(n * s * (d + 3), s * (d + 3), d + 3, 1), offset=5))


def items(product: str, form: str) -> list[Item]:
    """Calls of one product that a form can say."""
    if product == "950":
        cases = [
            strided(call(S=2, KV_S=9, lse=True)),
            full_mla(dtype="HIFLOAT8", B=1),
            antiquant(kv_dtype="INT4" if form == "cpp" else "INT32", dtype="BFLOAT16"),
            per_tensor(S=3),
            call("TND", S=3, KV_S=7, lse=True, query=TensorSpec((6, 4, 64), "FLOAT16", fill=Uniform(-1, 1))),
            *(item.case for item in generate("950-v5", "invalid", 3, seed=4)),
        ]
        if form == "cpp":
            cases += [call(storage="tensor_list"), call().replace(query=None), call().replace(key=None), call(api="v3")]
    else:
        api = "v3" if form == "python" else "v1"
        cases = [old(call(S=5), product, api), old(call("BSH", dtype="BFLOAT16", S=2, lse=True), product, "v3")]
        cases += [old(antiquant(dtype="FLOAT16"), product, "v2" if form == "cpp" else "v3")]
        cases += [item.case for item in generate(f"{product}-v3", "invalid", 2, seed=6)]
    return [Item(f"{product}-{i}", case, profile_for(case.api, case.product).name) for i, case in enumerate(cases)]


def said(tmp_path: Path, product: str, form: str) -> list[tuple[Item, Path]]:
    """The files of the calls that torch has words for (all, for C++)."""
    from fiafuzz.campaign.exports import CannotExport

    program, found = PROGRAMS[form], []
    for item in items(product, form):
        path = tmp_path / program.file_of(item)
        try:
            made = program.export(item, path.name, beside=True)
        except CannotExport as error:
            assert form == "python" and "--as cpp" in str(error), (item.name, error)
            continue
        path.write_text(made.text)
        if made.side_name:
            (tmp_path / made.side_name).write_bytes(made.side)
        found.append((item, path))
    return found


def run_all(env: dict[str, str], tmp_path: Path, jobs: list[tuple[Item, Path]]) -> tuple[list[dict[str, object]], str]:
    """What the child tells about each, and all that the scripts print."""
    todo, done = tmp_path / "jobs", tmp_path / "answers"
    todo.write_text("".join(json.dumps({"path": str(path), "case": case_to_dict(item.case)}) + "\n" for item, path in jobs))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.standin.exported_child", str(todo), str(done)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    answers = [json.loads(line) for line in done.read_text().splitlines()]
    assert len(answers) == len(jobs), ran.stdout[-2000:] + ran.stderr[-2000:]
    for (item, _), answer in zip(jobs, answers):
        assert answer["code"] in (0, 1), (item.name, answer, ran.stdout[-2000:])
    return answers, ran.stdout


@pytest.mark.parametrize("product", ["950", "a3"])
def test_scripts_send_the_very_same_call_and_agree(standin_env: Environment, tmp_path: Path, product: str) -> None:
    jobs = said(tmp_path, product, "python")
    assert len(jobs) >= 4
    answers, _ = run_all(standin_env(soc=SOCS[product], host="tests.standin.exported_host"), tmp_path, jobs)
    for (item, _), answer in zip(jobs, answers):
        assert answer["code"] == 0 and answer["calls"], (item.name, answer)
        assert answer["differences"] == [], item.name


@pytest.mark.parametrize("product", ["950", "a2"])
def test_programs_send_the_very_same_call_and_agree(standin: Build, standin_env: Environment, tmp_path: Path, product: str) -> None:
    jobs = []
    for item, source in said(tmp_path, product, "cpp"):
        library = source.with_suffix(".so")
        command = [cpp_compiler(), "-std=c++11", "-O0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{standin.root / 'include'}"]
        command += [str(source), "-o", str(library), f"-L{standin.libraries}", "-lascendcl", "-lnnopbase", "-lopapi"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        jobs.append((item, library))
    answers, _ = run_all(standin_env(soc=SOCS[product], host="tests.standin.exported_host"), tmp_path, jobs)
    for (item, _), answer in zip(jobs, answers):
        assert answer["code"] == 0, (item.name, answer)
        assert answer["differences"] == [], item.name
        api = item.case.api.upper()
        assert answer["calls"] == ["aclnnFusedInferAttentionScore" + ("" if api == "V1" else api)], item.name


def test_scripts_tell_wrong_answers(standin_env: Environment, tmp_path: Path) -> None:
    valid = call(S=2, KV_S=9, lse=True)
    broken = valid.replace(numKeyValueHeads=3)
    assert predict(broken, "950-v5").verdict == "reject"
    planted = {
        "no-op:numHeads==4&scaleValue==0.5": (valid.replace(scaleValue=0.5), "are wrong"),
        "wrong-status:scaleValue==0.25&verdict==accept": (valid.replace(scaleValue=0.25), "but the call is valid"),
        "overrun:scaleValue==0.125": (broken.replace(scaleValue=0.75), "Refused with 561103, but 561002 was due"),
        "accept-invalid:scaleValue==0.375": (broken.replace(scaleValue=0.375), "it must be refused with 561002"),
    }
    jobs = []
    for i, (case, _) in enumerate(planted.values()):
        path = tmp_path / f"planted{i}.py"
        path.write_text(PROGRAMS["python"].export(Item(f"planted{i}", case, "950-v5"), path.name, beside=False).text)
        jobs.append((Item(f"planted{i}", case, "950-v5"), path))
    env = {**standin_env(soc=SOCS["950"], faults=list(planted), host="tests.standin.exported_host"), "EXPORTED_STATUS": "561103"}
    answers, text = run_all(env, tmp_path, jobs)
    assert [answer["code"] for answer in answers] == [1] * len(jobs), text
    for _, says in planted.values():
        assert says in text


def test_a_script_ends_by_itself_when_the_device_fails(standin_env: Environment, tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(PROGRAMS["python"].export(Item("one", call(S=2, KV_S=9), "950-v5"), path.name, beside=False).text)
    env = standin_env(soc=SOCS["950"], faults="device-fault")
    ran = subprocess.run([sys.executable, str(path)], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 1 and "failed with 507015, but the call must be accepted" in ran.stdout, ran.stdout + ran.stderr


def test_a_program_compares_what_comes_back(standin: Build, standin_env: Environment, tmp_path: Path) -> None:
    from fiafuzz.backends.cpu import CpuBackend
    from fiafuzz.campaign.execute import poisoned
    from fiafuzz.model.scene import Scene
    from fiafuzz.model.tensors import materialize

    case = call(S=2, KV_S=9, lse=True, dtype="BFLOAT16")
    source = tmp_path / "one.cpp"
    source.write_text(PROGRAMS["cpp"].export(Item("one", case, "950-v5"), source.name, beside=False).text)
    program = compile_program(source, standin)
    outputs = poisoned(case)
    assert CpuBackend().run(case, Scene(case), materialize(case), outputs).kind == "ok"

    def run(**more: str) -> tuple[int, str]:
        env = {**standin_env(soc=SOCS["950"], host=""), **more}
        done = subprocess.run([str(program)], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    good = {}
    for name, variable in (("attentionOut", "STANDIN_OUTPUT"), ("softmaxLse", "STANDIN_OUTPUT_LSE")):
        (tmp_path / name).write_bytes(outputs[name].tobytes())
        good[variable] = str(tmp_path / name)
    assert run(**good)[0] == 0
    lse = outputs["softmaxLse"].copy()
    lse.reshape(-1)[3] += 0.5
    (tmp_path / "off").write_bytes(lse.tobytes())
    code, text = run(**{**good, "STANDIN_OUTPUT_LSE": str(tmp_path / "off")})
    assert code == 1 and "softmaxLse[0, 1, 1, 0]: got" in text and text.count(": got") == 1, text
    assert run(**good, STANDIN_STATUS="561002")[0] == 1
    code, text = run(**good, STANDIN_SYNC_STATUS="507015")
    assert code == 1 and "507015" in text, text
    assert run(**good, STANDIN_DEVICES="0")[0] == 2
