"""What an Ascend machine offers, read from a made-up file system and environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fiafuzz.backends import ascend
from fiafuzz.model.profiles import PROFILES


@pytest.mark.parametrize(
    ("soc", "name", "number", "product"),
    [
        ("Ascend910B1", "A2", 220, "a2"),
        ("Ascend910B2C", "A2", 222, "a2"),
        ("Ascend910B4-1", "A2", 225, "a2"),
        ("Ascend910_9391", "A3", 250, "a3"),
        ("Ascend910_9363", "A3", 256, "a3"),
        ("Ascend950PR_9579", "Ascend 950", 260, "950"),
        ("Ascend950DT_9582", "Ascend 950", 260, "950"),
        ("Ascend310P3", "Ascend 310P", 202, None),
        ("Ascend310B4", "Ascend 310B", 243, None),
        ("Ascend910A", "Ascend 910A", 100, None),
        ("Ascend910PremiumA", "Ascend 910A", 104, None),
    ],
)
def test_families(soc: str, name: str, number: int, product: str | None) -> None:
    by_name, by_number = ascend.family_of(soc), ascend.family_of_number(number)
    assert by_name is not None and by_name is by_number
    assert (by_name.name, by_name.product) == (name, product)
    profiles = ascend.profiles_of(soc)
    assert set(profiles) == {p.name for p in PROFILES.values() if p.product == product}
    assert bool(ascend.about_soc(soc)) == (product is None)


def test_profiles_of_one_api_and_unknown_names() -> None:
    assert ascend.profiles_of("Ascend910B2", ("v3",)) == ("a2-v3", "a2-v3-2026.08")
    assert ascend.profiles_of("Ascend950PR_9579", ("v5",)) == ("950-v5", "950-v5-2026.08")
    for soc in ("", "Ascend960X", "ascend910b2", "Ascend910B2;rm", "H100"):
        assert ascend.family_of(soc) is None and ascend.profiles_of(soc) == () and "no known family" in ascend.about_soc(soc)


def machine(root: Path) -> dict[str, str]:
    """A whole CANN with a driver, operator packages and three devices; the variables that belong to it."""
    home = root / "usr/local/Ascend/ascend-toolkit/latest"
    for folder in ("runtime", "compiler", "lib64", "opp/vendors/mine/op_api", "opp/vendors/not_one", "x86_64-linux"):
        (home / folder).mkdir(parents=True)
    (home / "lib64/libascendcl.so").touch()
    (home / "x86_64-linux/ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=9.1.0\narch=x86_64\n")
    (home / "opp/version.info").write_text("Version=9.1.0.beta1\n")
    (home / "opp/vendors/mine/version.info").write_text("custom_opp_compiler_version=9.0.0\n")
    (home.parent / "set_env.sh").touch()
    driver = root / "usr/local/Ascend/driver"
    driver.mkdir(parents=True)
    (driver / "version.info").write_text("Version=26.0.rc1\nascendhal_version=7.0\n")
    (root / "dev").mkdir()
    for name in ("davinci0", "davinci2", "davinci10", "davinci_manager", "null"):
        (root / "dev" / name).touch()
    return {"ASCEND_HOME_PATH": str(home), "ASCEND_OPP_PATH": str(home / "opp"), "LD_LIBRARY_PATH": f"/nowhere:{home / 'lib64'}"}


def test_a_whole_machine(tmp_path: Path) -> None:
    variables = machine(tmp_path)
    found = ascend.look(variables, tmp_path)
    assert ascend.trouble(found) is None
    assert found.devices == (0, 2, 10) and found.visible is None
    assert found.runtime == variables["ASCEND_HOME_PATH"] + "/lib64/libascendcl.so"
    assert dict(found.versions) == {"cann files": "9.1.0", "opp": "9.1.0.beta1", "operators mine": "9.0.0", "driver": "26.0.rc1"}


def test_a_custom_operator_package_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "op_api").mkdir(parents=True)
    variables = {**machine(tmp_path), "ASCEND_CUSTOM_OPP_PATH": f"{own}:/nowhere"}
    assert [p.name for p in ascend.operator_packages(variables)] == ["own", "mine"]
    assert ascend.look(variables, tmp_path).versions["operators own"] == "unknown version"


def said(variables: dict[str, str], root: Path) -> str:
    found = ascend.trouble(ascend.look(variables, root))
    assert found is not None and found.what and found.next_step and "\n" not in str(found)
    return str(found)


def test_what_is_missing(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    assert "no CANN here" in said({}, bare) and "install" in said({}, bare)
    root = tmp_path / "root"
    whole = machine(root)
    home = Path(whole["ASCEND_HOME_PATH"])
    assert "does not find libascendcl.so" in said({}, root) and f"source {home.parent / 'set_env.sh'}" in said({}, root)
    assert "does not find libascendcl.so" in said({**whole, "LD_LIBRARY_PATH": ""}, root)
    assert "ASCEND_OPP_PATH is not set" in said({k: v for k, v in whole.items() if k != "ASCEND_OPP_PATH"}, root)
    assert "which is no folder" in said({**whole, "ASCEND_OPP_PATH": "/no/where"}, root)
    (home / "runtime").rmdir()
    assert "has no folder runtime" in said(whole, root) and "half a CANN" in said(whole, root)
    assert "runtime and no folder compiler" in said({**whole, "ASCEND_HOME_PATH": str(bare)}, root)


def test_the_loaders_cache_is_read(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\x00libascendcl.so\x00/opt/cann/lib64/libascendcl.so\x00libc.so.6\x00")
    assert ascend.find_library("libascendcl.so", {}, tmp_path) == "/opt/cann/lib64/libascendcl.so"
    assert ascend.find_library("libascendc.so", {}, tmp_path) == ""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0", ""),
        ("0,2,13", ""),
        ("", "hides"),
        (" ", "hides"),
        ("0, 1", "only up to ' 1'"),
        ("2,1", "ascending"),
        ("1,1", "ascending"),
        ("0,x,2", "'x'"),
        ("NoDevFiles", "NoDevFiles"),
    ],
)
def test_visible_devices(value: str, words: str, tmp_path: Path) -> None:
    found = ascend.visible_trouble(value)
    assert bool(found) == bool(words) and words in found
    trouble = ascend.trouble(ascend.look({**machine(tmp_path), ascend.VISIBLE_VARIABLE: value}, tmp_path))
    assert (trouble is not None) == bool(words)


@pytest.mark.parametrize("text", ["-1", "x", "0,1", "99999", "1.5"])
def test_a_device_index_is_a_small_number(text: str) -> None:
    assert ascend.chosen_device({}) == 0 and ascend.chosen_device({"FIAFUZZ_DEVICE": " 3 "}) == 3
    with pytest.raises(ValueError, match="FIAFUZZ_DEVICE"):
        ascend.chosen_device({"FIAFUZZ_DEVICE": text})


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b"Version=26.0.rc1\n", "26.0.rc1"),
        (b"x=1\nversion=[9.1.0]\n", "9.1.0"),
        (b'runtime_running_version="7.8:9.1.0"\n', "9.1.0"),
        (b"\xff\xfe\x00", ""),
        (b"", ""),
        (b"nothing here\n", ""),
    ],
    ids=["plain", "brackets", "pair", "binary", "empty", "none"],
)
def test_version_files(tmp_path: Path, content: bytes, version: str) -> None:
    (tmp_path / "version.info").write_bytes(content)
    assert ascend.read_version(tmp_path / "version.info") == version
    assert ascend.read_version(tmp_path) == "" and ascend.read_version(tmp_path / "absent") == ""
