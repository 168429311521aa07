"""What a backend needs and is not here, or is too old."""

from __future__ import annotations

import pytest

import fiafuzz.backends.packages as packages
from fiafuzz.backends.catalogue import BUILTIN
from fiafuzz.backends.packages import missing
from fiafuzz.backends.protocol import BackendUnavailable
from fiafuzz.backends.registry import get_backend, list_backends


@pytest.mark.parametrize("here, least, enough", [
    ("1.32.0", "1.32", True), ("1.23.2", "1.32", False), ("2", "1.32", True), ("1.4", "1.32", False), ("1.100.1", "1.32", True),
    ("1.32.0rc1", "1.32", True), ("1.31.9+cpu", "1.32", False), (None, "1.32", True),
])
def test_versions_are_compared_as_numbers(here: str | None, least: str, enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_version", lambda name: here)
    assert missing([f"numpy>={least}"]) == ([] if enough else [f"numpy>={least} ({here} is here)"])


def test_what_is_not_there_at_all() -> None:
    assert missing(["numpy", "no_such_package", "no_such_one>=2", "numpy>=1", "numpy>=1000"])[:2] == ["no_such_package", "no_such_one>=2"]
    assert missing(["numpy>=1"]) == [] and missing(["numpy>=1000"])[0].startswith("numpy>=1000 (")


def test_a_runtime_that_is_too_old_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last release for Python 3.10: every call would end as an error of the backend."""
    monkeypatch.setattr(packages, "_version", lambda name: "1.23.2" if name == "onnxruntime" else None)
    monkeypatch.setattr(packages, "find_spec", lambda name: name)
    names = [name for name in BUILTIN if name.startswith("ort-")]
    assert len(names) >= 5
    for name in names:
        with pytest.raises(BackendUnavailable, match=r"needs onnxruntime>=1.32 \(1.23.2 is here\): pip install 'onnxruntime>=1.32'$"):
            get_backend(name)
    reasons = {record.name: record.reason for record in list_backends()}
    assert {reasons[name] for name in names} == {"needs onnxruntime>=1.32 (1.23.2 is here)"}
