"""Naming, listing and loading backends."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fiafuzz.backends import packages, registry
from fiafuzz.backends.faults import all_faults
from fiafuzz.backends.protocol import BackendUnavailable
from fiafuzz.backends.registry import expand, get_backend, list_backends

ROOT = Path(__file__).parents[2]


def test_listing_imports_neither_torch_nor_numpy():
    script = (
        "import sys\nfrom fiafuzz.backends.registry import list_backends\n"
        "names = [r.name for r in list_backends()]\nassert 'cpu' in names and 'faulty:gqa-tiled' in names\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_every_listed_name_loads():
    records = list_backends()
    assert len({r.name for r in records}) == len(records)
    for record in records:
        assert record.title and record.capabilities
        if record.name.startswith(("torch-npu", "aclnn")):  # their own tests load them, in processes of their own
            assert record.available == (not record.reason)
            continue
        optional = not record.name.startswith(("cpu", "torch-", "faulty:")) and os.environ.get("FIAFUZZ_REQUIRE_ALL") != "1"
        if optional and not record.available:  # kernels of other projects, whose packages a checkout may lack
            assert record.reason.startswith("needs ") or "vllm" in record.name, record
            continue
        assert record.available
        backend = get_backend(record.name)
        assert backend.info.name == record.name
        assert backend.info.checks in ("own", "emulated", "none")


def test_names_of_faults_are_listed_with_their_room():
    records = {r.name: r for r in list_backends()}
    for fault in all_faults():
        assert records[f"faulty:{fault.name}"].capabilities["room"] == fault.room


def test_profile_reaches_the_backend():
    assert get_backend("cpu", "a2-v3").info.profiles == ("a2-v3",)
    assert get_backend("faulty:scale-twice", "a2-v3").info.profiles == ("a2-v3",)
    assert get_backend("cpu").info.profiles == ()


def test_alias_means_both_and_loads_neither():
    assert expand("torch-sdpa") == ("torch-sdpa-math", "torch-sdpa-flash")
    assert expand("cpu") == ("cpu",)
    with pytest.raises(ValueError, match="torch-sdpa-math and torch-sdpa-flash"):
        get_backend("torch-sdpa")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cpuu", "cpu"), ("torch-sdpa-mth", "torch-sdpa-math"), ("zzz", "known:"), ("faulty:gqa", "gqa-tiled")],
)
def test_unknown_name_says_what_is_known(name, hint):
    with pytest.raises(ValueError, match=hint):
        get_backend(name)


def test_missing_package_is_a_reason_not_a_traceback(monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "torch" else object())
    record = next(r for r in list_backends() if r.name == "cpu")
    assert not record.available and "torch" in record.reason
    with pytest.raises(BackendUnavailable, match="pip install torch"):
        get_backend("cpu")


def own_backend(profile):
    return ("made", profile)


def test_third_party_backends_come_through_entry_points(monkeypatch):
    good = EntryPoint("own", f"{__name__}:own_backend", registry.ENTRY_POINTS)
    broken = EntryPoint("broken", "no_such_package:factory", registry.ENTRY_POINTS)
    hidden = EntryPoint("cpu", "no_such_package:factory", registry.ENTRY_POINTS)
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [good, broken, hidden] if group == registry.ENTRY_POINTS else []
    )
    records = {r.name: r for r in list_backends()}
    assert records["own"].available and not records["broken"].available and records["broken"].reason
    assert "no_such_package" not in records["cpu"].title
    assert get_backend("own", "950-v5") == ("made", "950-v5")
    with pytest.raises(BackendUnavailable, match="no_such_package"):
        get_backend("broken")
