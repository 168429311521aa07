"""Where CANN's libraries are looked for. Loading them is tested in tests/standin."""

from __future__ import annotations

from pathlib import Path

import pytest

from fiafuzz.backends import aclnn_library
from fiafuzz.backends.aclnn import machine
from fiafuzz.backends.aclnn_library import candidates, missing, operator_candidates
from fiafuzz.backends.protocol import BackendUnavailable
from fiafuzz.backends.registry import get_backend, list_backends


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without CANN: no variables, an empty cache of the loader."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_CUSTOM_OPP_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(aclnn_library, "LOADER_CACHE", tmp_path / "ld.so.cache")
    machine.cache_clear()
    return tmp_path


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_a_bare_machine_says_what_was_looked_for_and_what_to_do(bare: Path) -> None:
    text = missing({})
    assert text.startswith("libascendcl.so was not found in LD_LIBRARY_PATH (not set) or ASCEND_HOME_PATH (not set)")
    assert "set_env.sh" in text
    for name in ("aclnn", "aclnn:v3"):
        with pytest.raises(BackendUnavailable, match=r"libascendcl\.so was not found"):
            get_backend(name)


def test_lists_say_why_it_cannot_run_and_load_nothing(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aclnn_library.ctypes, "CDLL", None)
    found = {record.name: record for record in list_backends() if record.name.startswith("aclnn")}
    assert list(found) == ["aclnn", "aclnn:v1", "aclnn:v2", "aclnn:v3", "aclnn:v4", "aclnn:v5"]
    assert not any(record.available for record in found.values())
    assert "libascendcl.so was not found" in found["aclnn:v4"].reason
    touch(bare, "cann/lib64/libascendcl.so", "cann/lib64/libnnopbase.so", "cann/lib64/libopapi.so")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(bare / "cann"))
    assert all(record.available for record in list_backends() if record.name.startswith("aclnn"))


def test_the_loaders_order_is_kept(bare: Path) -> None:
    touch(bare, "one/libascendcl.so", "two/libascendcl.so", "home/lib64/libascendcl.so", "home/runtime/lib64/libascendcl.so")
    env = {"LD_LIBRARY_PATH": f"{bare / 'two'}::{bare / 'none'}:{bare / 'one'}", "ASCEND_HOME_PATH": str(bare / "home")}
    last = [str(bare / "home/lib64/libascendcl.so"), str(bare / "home/runtime/lib64/libascendcl.so")]
    first = [str(bare / "two/libascendcl.so"), str(bare / "one/libascendcl.so")]
    assert list(candidates("libascendcl.so", env)) == [*first, *last]
    (bare / "ld.so.cache").write_bytes(b"glibc\0libascendcl.so\0/usr/lib/libascendcl.so\0")
    assert list(candidates("libascendcl.so", env)) == [*first, "libascendcl.so", *last]


def test_own_operator_packages_come_before_cann(bare: Path) -> None:
    below = "op_api/lib/libcust_opapi.so"
    touch(bare, f"custom/{below}", f"opp/vendors/a/{below}", f"opp/vendors/b/{below}", f"opp/vendors/c/{below}", "opp/vendors/d/empty")
    touch(bare, "home/lib64/libopapi_transformer.so", "home/lib64/libopapi_math.so", "home/lib64/libopapi.so")
    touch(bare, "home/opp/built-in/op_impl/ai_core/tbe/op_api/lib/linux/libopapi.so")
    (bare / "opp/vendors/config.ini").write_text("[vendors]\nload_priority = c, a ,nobody\n")
    env = {"ASCEND_CUSTOM_OPP_PATH": f"{bare / 'custom'}:", "ASCEND_OPP_PATH": str(bare / "opp"), "ASCEND_HOME_PATH": str(bare / "home")}
    found = [str(Path(path).relative_to(bare)) for path in operator_candidates(env)]
    assert found == [
        f"custom/{below}",
        *(f"opp/vendors/{name}/{below}" for name in "cab"),
        "home/lib64/libopapi_transformer.so",
        "home/lib64/libopapi_math.so",
        "home/lib64/libopapi.so",
        "home/opp/built-in/op_impl/ai_core/tbe/op_api/lib/linux/libopapi.so",
    ]
    del env["ASCEND_OPP_PATH"]
    touch(bare, f"home/opp/vendors/own/{below}")
    assert f"home/opp/vendors/own/{below}" in [str(Path(path).relative_to(bare)) for path in operator_candidates(env)]


def test_each_missing_part_is_named(bare: Path) -> None:
    env = {"ASCEND_HOME_PATH": str(bare / "home"), "LD_LIBRARY_PATH": str(bare / "lib")}
    assert f"ASCEND_HOME_PATH ({bare / 'home'}, which does not exist)" in missing(env)
    touch(bare, "lib/libascendcl.so")
    assert missing(env).startswith(f"libnnopbase.so was not found in LD_LIBRARY_PATH ({bare / 'lib'})")
    touch(bare, "lib/libnnopbase.so")
    assert missing(env).startswith("no libcust_opapi.so, libopapi_transformer.so or libopapi.so was found")
    touch(bare, "lib/libopapi.so")
    assert missing(env) == ""


def test_an_unknown_version_is_no_backend(bare: Path) -> None:
    with pytest.raises(ValueError, match=r"aclnn:v6.*did you mean"):
        get_backend("aclnn:v6")
