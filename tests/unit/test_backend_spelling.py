"""Options in the names of backends."""

from __future__ import annotations

import itertools

import pytest

from fiafuzz.backends import registry, torch_npu_family
from fiafuzz.backends.spelling import Spelling, base_of, read

SPELLING = Spelling("base", (("one", "two"), ("extra",)), {"mode": ("0", "1"), "other": ("x",)})


@pytest.mark.parametrize("items", [("one", "extra", "mode=1", "other=x"), ("extra", "mode=0"), ("two",), ()])
def test_order_does_not_matter(items: tuple[str, ...]) -> None:
    wanted = "base:" + ",".join(items) if items else "base"
    for order in itertools.permutations(items):
        chosen = read(SPELLING, "base:" + ",".join(order) if order else "base")
        assert chosen.name == wanted
        assert chosen.words == {item for item in items if "=" not in item}
        assert dict(chosen.options) == dict(item.split("=") for item in items if "=" in item)
        assert read(SPELLING, chosen.name) == chosen


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base:", "''"),
        ("base:thre", "'thre'"),
        ("base:twoo", "did you mean two"),
        ("base:one,two", "exclude each other"),
        ("base:mode", "'mode'"),
        ("base:mode=2", "mode is one of 0, 1"),
        ("base:mod=1", "did you mean mode"),
        ("base:mode=0,mode=1", "twice"),
        ("base:one,", "''"),
        ("else:one", "does not begin"),
    ],
)
def test_wrong_options_are_refused_in_one_line(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"backend|begin") as error:
        read(SPELLING, name)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_torch_npu_names() -> None:
    assert torch_npu_family.choose("torch-npu:queue=1,v2").name == "torch-npu:v2,queue=1"
    assert torch_npu_family.choose("torch-npu:v1,meta").name == "torch-npu:meta,v1"
    with pytest.raises(ValueError, match="takes no queue"):
        torch_npu_family.choose("torch-npu:meta,queue=1")
    assert base_of("torch-npu:v1") == "torch-npu"


def test_the_registry_knows_names_with_options() -> None:
    record = registry.find_record("torch-npu:queue=2,v1")
    assert record is not None and record.name == "torch-npu:v1,queue=2"
    listed = registry.find_record("torch-npu:v1")
    assert listed is not None and (record.available, record.reason, record.title) == (listed.available, listed.reason, listed.title)
    meta = registry.find_record("torch-npu:meta,v2")
    assert meta is not None and "meta" in meta.title
    assert registry.find_record("torch-npuu") is None and registry.find_record("cpu") is not None
    with pytest.raises(ValueError, match="queue is one of"):
        registry.find_record("torch-npu:queue=7")
    with pytest.raises(ValueError, match="queue is one of"):
        registry.get_backend("torch-npu:queue=7")
