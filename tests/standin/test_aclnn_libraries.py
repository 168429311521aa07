"""Which libraries the aclnn backend takes, in installations made up for the test, and what it says when something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.standin_cann.build import StandinUnavailable, compiler

pytestmark = pytest.mark.standin

RUNTIME_FUNCTIONS = (
    "aclInit", "aclFinalize", "aclrtSetDevice", "aclrtResetDevice", "aclrtCreateStream", "aclrtDestroyStream", "aclrtSynchronizeStream",
    "aclrtMalloc", "aclrtFree", "aclrtMemcpy", "aclGetRecentErrMsg",
)  # fmt: skip
HELPER_FUNCTIONS = (
    "aclCreateTensor", "aclCreateTensorList", "aclCreateIntArray", "aclDestroyTensor", "aclDestroyTensorList", "aclDestroyIntArray",
    "aclDestroyAclOpExecutor",
)  # fmt: skip
LOAD = """
import json, sys
from fiafuzz.backends.aclnn_library import load, missing
from fiafuzz.backends.protocol import BackendUnavailable
try:
    found = load()
    print(json.dumps({"paths": found.paths, "failed": found.failed, "missing": missing()}))
except BackendUnavailable as error:
    print(json.dumps({"unavailable": str(error), "missing": missing()}))
"""
OPEN = """
import json
from fiafuzz.backends.protocol import BackendUnavailable
from fiafuzz.backends.registry import get_backend
try:
    info = get_backend("NAME").info
    print(json.dumps({"profiles": info.profiles, "versions": dict(info.versions)}))
except BackendUnavailable as error:
    print(json.dumps({"unavailable": str(error)}))
"""


class Tree:
    """A made-up installation under a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "cann"
        self.env: dict[str, str] = {"ASCEND_HOME_PATH": str(self.home)}

    def library(self, path: str, *functions: str, body: str = "return 0;", source: str = "") -> Path:
        """A shared library whose functions all answer 0."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"long {name}(void) {{ {body} }}\n" for name in functions) + source
        subprocess.run([compiler(), "-shared", "-fPIC", "-x", "c", "-", "-o", str(file)], input=text, text=True, check=True)
        return file

    def runtime(self, folder: str = "cann/lib64", soc: str = "Ascend910B2", devices: int = 1, init: int = 0) -> None:
        """The runtime and the helpers."""
        answers = "".join(f"long {name}(void) {{ return 0; }}\n" for name in RUNTIME_FUNCTIONS if name != "aclInit")
        source = (
            f'const char *aclrtGetSocName(void) {{ return "{soc}"; }}\n'
            f"int aclrtGetDeviceCount(unsigned *n) {{ *n = {devices}; return 0; }}\nint aclInit(void *p) {{ return {init}; }}\n"
        )
        self.library(f"{folder}/libascendcl.so", source=answers + source)
        self.library(f"{folder}/libnnopbase.so", *HELPER_FUNCTIONS)

    def operator(self, path: str, *versions: str) -> Path:
        """A library with some versions of the operator ("" is V1)."""
        names = [f"aclnnFusedInferAttentionScore{v}" for v in versions]
        return self.library(path, *names, *(f"{name}GetWorkspaceSize" for name in names))

    def run(self, program: str) -> Any:
        """What a program prints in this installation, as JSON."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_", "LD_LIBRARY_PATH", "FIAFUZZ_"))}
        done = subprocess.run([sys.executable, "-c", program], env={**kept, **self.env}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def load(self) -> Any:
        """The libraries that are taken."""
        return self.run(LOAD)

    def open(self, name: str = "aclnn") -> Any:
        """The backend of a name."""
        return self.run(OPEN.replace("NAME", name))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    try:
        compiler()
    except StandinUnavailable as error:
        if os.environ.get("FIAFUZZ_REQUIRE_ALL") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    return Tree(tmp_path)


V3 = "aclnnFusedInferAttentionScoreV3"
V5 = "aclnnFusedInferAttentionScoreV5"


def test_a_split_installation_serves_the_operator_from_its_transformer_library(tree: Tree) -> None:
    tree.runtime()
    split = tree.operator("cann/lib64/libopapi_transformer.so", "", "V2", "V3", "V4", "V5")
    tree.operator("cann/lib64/libopapi.so", "", "V2", "V3", "V4", "V5")
    found = tree.load()
    assert {path for name, path in found["paths"].items() if name.startswith("aclnn")} == {str(split)}
    assert len(found["paths"]) == 7 and found["missing"] == "" and not found["failed"]


def test_each_version_comes_from_the_first_library_that_has_it(tree: Tree) -> None:
    tree.runtime()
    custom = tree.operator("custom/op_api/lib/libcust_opapi.so", "V5")
    beta = tree.operator("opp/vendors/beta/op_api/lib/libcust_opapi.so", "V4")
    alpha = tree.operator("opp/vendors/alpha/op_api/lib/libcust_opapi.so", "V4", "V3")
    main = tree.operator("cann/lib64/libopapi.so", "", "V2", "V3", "V4", "V5")
    (tree.root / "opp/vendors/config.ini").write_text("load_priority=beta,gone\n")
    tree.env.update(ASCEND_CUSTOM_OPP_PATH=str(tree.root / "custom"), ASCEND_OPP_PATH=str(tree.root / "opp"))
    paths = tree.load()["paths"]
    base = "aclnnFusedInferAttentionScore"
    assert [paths[base + v] for v in ("", "V2", "V3", "V4", "V5")] == [str(main), str(main), str(alpha), str(beta), str(custom)]


def test_custom_packages_below_the_custom_path_count_too(tree: Tree) -> None:
    tree.runtime()
    deep = tree.operator("packages/mine/op_api/lib/libcust_opapi.so", "V3")
    tree.env["ASCEND_CUSTOM_OPP_PATH"] = f"{tree.root / 'nothing'}:{tree.root / 'packages'}"
    assert tree.load()["paths"][V3] == str(deep)


def test_half_a_version_does_not_count(tree: Tree) -> None:
    tree.runtime()
    tree.library("custom/op_api/lib/libcust_opapi.so", V5)  # no first phase
    main = tree.operator("cann/lib64/libopapi.so", "V5")
    tree.env["ASCEND_CUSTOM_OPP_PATH"] = str(tree.root / "custom")
    assert tree.load()["paths"][V5] == str(main)


def test_the_loader_path_comes_before_the_installation(tree: Tree) -> None:
    tree.runtime()
    tree.operator("cann/lib64/libopapi.so", "V3")
    tree.runtime("other")
    other = tree.operator("other/libopapi.so", "V3")
    tree.env["LD_LIBRARY_PATH"] = str(tree.root / "other")
    paths = tree.load()["paths"]
    assert paths["libascendcl.so"] == str(tree.root / "other/libascendcl.so") and paths[V3] == str(other)


def test_a_function_that_a_library_only_passes_on_is_told_of_the_library_that_has_it(tree: Tree) -> None:
    tree.runtime()
    main = tree.operator("cann/lib64/libopapi.so", "V3")
    custom = tree.root / "custom/op_api/lib/libcust_opapi.so"
    custom.parent.mkdir(parents=True)
    needs = ["-Wl,--no-as-needed", f"-L{main.parent}", "-l:libopapi.so", f"-Wl,-rpath,{main.parent}"]
    subprocess.run([compiler(), "-shared", "-fPIC", "-x", "c", "-", "-o", str(custom), *needs], input="int x;\n", text=True, check=True)
    tree.env["ASCEND_CUSTOM_OPP_PATH"] = str(tree.root / "custom")
    assert tree.load()["paths"][V3] == str(main)


def test_a_library_that_does_not_load_is_passed_over_and_named(tree: Tree) -> None:
    tree.runtime()
    broken = tree.root / "custom/op_api/lib/libcust_opapi.so"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"this is no library")
    tree.env["ASCEND_CUSTOM_OPP_PATH"] = str(tree.root / "custom")
    alone = tree.load()
    assert "not loaded" in alone["unavailable"] and "libcust_opapi.so" in alone["unavailable"]
    main = tree.operator("cann/lib64/libopapi.so", "V3")
    found = tree.load()
    assert found["paths"][V3] == str(main) and list(found["failed"]) == [str(broken)]


@pytest.mark.parametrize("name", ["libascendcl.so", "libnnopbase.so"])
def test_half_an_installation_says_what_is_missing(tree: Tree, name: str) -> None:
    tree.runtime()
    tree.operator("cann/lib64/libopapi.so", "V3")
    (tree.home / "lib64" / name).unlink()
    found = tree.load()
    assert f"{name} was not found in" in found["unavailable"] and str(tree.home) in found["unavailable"]
    assert "set_env.sh" in found["unavailable"] and found["missing"] in found["unavailable"]


def test_a_runtime_that_does_not_load_says_so_with_the_words_of_the_loader(tree: Tree) -> None:
    tree.runtime()
    tree.operator("cann/lib64/libopapi.so", "V3")
    (tree.home / "lib64/libascendcl.so").write_bytes(b"\x7fELF")
    assert "libascendcl.so cannot be loaded: " in tree.load()["unavailable"]


def test_no_operator_library_says_where_it_looked_and_what_to_install(tree: Tree) -> None:
    tree.runtime()
    found = tree.load()
    assert "libopapi_transformer.so" in found["unavailable"] and "operator packages" in found["unavailable"]
    assert found["missing"]
    tree.library("cann/lib64/libopapi.so", "aclnnAdd")
    assert "no library here has aclnnFusedInferAttentionScore" in tree.load()["unavailable"]


def test_a_home_that_does_not_exist_says_so(tree: Tree) -> None:
    assert "which does not exist" in tree.load()["unavailable"]


# ---- the backend on top of it ----------------------------------------------------------------------------------------

Change = Callable[[Tree], None]


def test_the_versions_that_are_there_decide_the_profiles(tree: Tree) -> None:
    tree.runtime(soc="Ascend910B4-1")
    tree.operator("cann/lib64/libopapi.so", "", "V2", "V3")
    (tree.home / "ascend_toolkit_install.info").write_text("version=9.0.0\n")
    found = tree.open()
    assert found["profiles"] == ["a2-v3", "a2-v3-2026.08"]
    assert found["versions"]["soc"] == "Ascend910B4-1" and "9.0.0" in found["versions"].values()
    assert str(tree.home / "lib64/libopapi.so") in found["versions"]["libraries"]
    assert tree.open("aclnn:v1")["profiles"] == ["a2-v3", "a2-v3-2026.08"]
    assert "no library here has aclnnFusedInferAttentionScoreV5; found: v1, v2, v3" in tree.open("aclnn:v5")["unavailable"]


@pytest.mark.parametrize(
    ("settings", "env", "words"),
    [
        ({"soc": "Ascend310P3"}, {}, "Ascend310P3"),
        ({"soc": "Mystery1"}, {}, "Mystery1"),
        ({"devices": 0}, {}, "device 0 is not there: the runtime sees 0"),
        ({"devices": 2}, {"FIAFUZZ_DEVICE": "2", "ASCEND_RT_VISIBLE_DEVICES": "0,1"}, "sees 2 (ASCEND_RT_VISIBLE_DEVICES=0,1)"),
        ({}, {"FIAFUZZ_DEVICE": "first"}, "FIAFUZZ_DEVICE='first'"),
        ({}, {"FIAFUZZ_OP_SECONDS": "soon"}, "FIAFUZZ_OP_SECONDS='soon'"),
        ({"init": 507008}, {}, "aclInit answers 507008"),
    ],
    ids=["soc-without-profile", "unknown-soc", "no-device", "device-beyond", "device-word", "seconds-word", "init-fails"],
)
def test_a_machine_that_cannot_be_used_says_why(tree: Tree, settings: Any, env: Any, words: str) -> None:
    tree.runtime(**settings)
    tree.operator("cann/lib64/libopapi.so", "", "V2", "V3", "V4", "V5")
    tree.env.update(env)
    assert words in tree.open()["unavailable"]


def test_a_runtime_that_was_initialised_before_serves(tree: Tree) -> None:
    tree.runtime(init=100002)
    tree.operator("cann/lib64/libopapi.so", "V3")
    assert "profiles" in tree.open()
