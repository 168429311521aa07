"""Dumps: the round trip, and every way in which a file can be wrong."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fiafuzz.model import dumps
from fiafuzz.model.case import Attrs, Case, Inputs, Outputs, TensorSpec, case_from_dict
from fiafuzz.model.codecs import decode, pack_int4
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.dumps import DumpError, inputs_from_dump, load_dump, outputs_from_dump, save_dump
from fiafuzz.model.tensors import materialize

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("FIAFUZZ_SHARED", REPOSITORY.parent / "shared"))
NUMERIC = SHARED / "data" / "numeric"


def small_case(dtype: str = "FLOAT16", *, lse: bool = True) -> Case:
    data = TensorSpec((1, 2, 4, 16), dtype)
    inputs = Inputs(query=TensorSpec((1, 2, 4, 16), "FLOAT16"), key=(data, data), value=(data, None),
                    attenMask=TensorSpec((4, 4), "BOOL"))
    outputs = Outputs(TensorSpec((1, 2, 4, 16), "FLOAT16"), TensorSpec((1, 2, 4, 1), "FLOAT32") if lse else None)
    return Case(inputs=inputs, attrs=Attrs(numHeads=2, softmaxLseFlag=lse), outputs=outputs)


def outputs_of(case: Case) -> dict[str, np.ndarray]:
    made = {"out:attentionOut": np.arange(128, dtype=np.float16).reshape(1, 2, 4, 16)}
    if case.outputs.softmaxLse is not None:
        made["out:softmaxLse"] = np.full((1, 2, 4, 1), np.inf, np.float32)
    return made


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


# -- round trips ------------------------------------------------------------------------------------------------

STORED = sorted({np.dtype(d.storage).str for d in DTYPES.values()})
ARRAYS = st.sampled_from(STORED).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)))


@given(
    st.dictionaries(st.sampled_from(["in:query", "in:key.0", "in:key.17", "in:blockTable", "out:attentionOut"]),
                    ARRAYS),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_what_is_saved_is_loaded(tmp_path: Path, arrays: dict[str, np.ndarray], compress: bool) -> None:
    path = tmp_path / "one.npz"
    save_dump(path, arrays, compress=compress)
    loaded = load_dump(path)
    assert loaded.keys() == arrays.keys()
    for key, array in arrays.items():
        assert same(loaded[key], np.ascontiguousarray(array).reshape(array.shape))
        assert loaded[key].flags.writeable and loaded[key].flags.c_contiguous
    assert [p.name for p in tmp_path.iterdir()] == ["one.npz"]
    if arrays:
        with np.load(path, allow_pickle=False) as theirs:
            assert sorted(theirs.files) == sorted(arrays)


@pytest.mark.parametrize("dtype", DTYPES)
def test_materialised_inputs_survive(tmp_path: Path, dtype: str) -> None:
    case = small_case(dtype)
    made = materialize(case)
    save_dump(tmp_path / "d.npz", dumps.dump_inputs(made))
    back = inputs_from_dump(case, load_dump(tmp_path / "d.npz"))
    assert back.keys() == made.keys()
    assert back.many("value")[1] is None
    for name in ("key", "value"):
        for one, other in zip(back.many(name), made.many(name)):
            assert (one is None and other is None) or same(one, other)
    assert same(back["query"], made["query"]) and same(back["attenMask"], made["attenMask"])


def test_the_same_arrays_give_the_same_file(tmp_path: Path) -> None:
    arrays = outputs_of(small_case())
    save_dump(tmp_path / "a.npz", arrays)
    save_dump(tmp_path / "b.npz", arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_tensors_of_the_dump_replace_fills_and_only_those() -> None:
    case = small_case()
    made = materialize(case)
    key = np.full((1, 2, 4, 16), 3, np.float16)
    tensors = inputs_from_dump(case, {"in:key.1": key, **outputs_of(case)})
    assert same(tensors.many("key")[1], key)
    assert same(tensors.many("key")[0], made.many("key")[0]) and same(tensors["query"], made["query"])


def test_packed_int4_is_taken_for_dtype_int4() -> None:
    case = small_case("INT4")
    values = np.tile(np.arange(-8, 8, dtype=np.int8), (1, 2, 4, 1))
    for given_array in (values, pack_int4(values)):
        assert same(inputs_from_dump(case, {"in:key.0": given_array}).many("key")[0], values)


def test_outputs() -> None:
    case = small_case()
    found = outputs_from_dump(case, outputs_of(case))
    assert list(found) == ["attentionOut", "softmaxLse"]
    plain = small_case(lse=False)
    assert list(outputs_from_dump(plain, outputs_of(plain))) == ["attentionOut"]


def test_fortran_order_and_foreign_byte_order_are_read(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(12, dtype=">f4").reshape(3, 4))
    save_dump(tmp_path / "d.npz", {"in:query": array})
    assert same(load_dump(tmp_path / "d.npz")["in:query"], np.arange(12, dtype=np.float32).reshape(3, 4))


# -- a dump that does not fit its case ---------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"in:query": np.zeros((1, 2, 4, 8), np.float16)},
         r"in:query has shape \[1, 2, 4, 8\], the case says \[1, 2, 4, 16\]"),
        ({"in:query": np.zeros((1, 2, 4, 16), np.float32)}, "in:query: FLOAT16 is stored as float16, not float32"),
        ({"in:attenMask": np.zeros((4, 4), np.uint8)}, "in:attenMask: BOOL is stored as bool, not uint8"),
        ({"in:pseShift": np.zeros(1, np.float16)}, "in:pseShift is in the dump, but null in the case"),
        ({"in:key.2": np.zeros(1, np.float16)}, "in:key.2 is in the dump, but null in the case"),
        ({"in:value.1": np.zeros(1, np.float16)}, "in:value.1 is in the dump, but null in the case"),
    ],
)
def test_inputs_that_do_not_fit(arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DumpError, match=message):
        inputs_from_dump(small_case(), arrays)


def test_codes_beyond_four_bits_do_not_fit() -> None:
    with pytest.raises(DumpError, match=r"in:key.0: FLOAT4_E2M1 holds 255, outside 0 \.\. 15"):
        inputs_from_dump(small_case("FLOAT4_E2M1"), {"in:key.0": np.full((1, 2, 4, 16), 255, np.uint8)})


def test_outputs_that_do_not_fit() -> None:
    case = small_case()
    arrays = outputs_of(case)
    with pytest.raises(DumpError, match="out:attentionOut is missing in the dump"):
        outputs_from_dump(case, {})
    with pytest.raises(DumpError, match="out:softmaxLse is missing in the dump"):
        outputs_from_dump(case, {"out:attentionOut": arrays["out:attentionOut"]})
    with pytest.raises(DumpError, match="out:attentionOut has shape"):
        outputs_from_dump(case, {**arrays, "out:attentionOut": arrays["out:attentionOut"][0]})
    with pytest.raises(DumpError, match="out:softmaxLse is in the dump, but null in the case"):
        outputs_from_dump(small_case(lse=False), arrays)


# -- files that are wrong in themselves --------------------------------------------------------------------------

def npy(array: np.ndarray, **pickled: bool) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **pickled)
    return file.getvalue()


def header(text: str, data: bytes = b"") -> bytes:
    encoded = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded)) + encoded + data


def write_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


class Trap:
    """Would create a file if it were ever unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (self.marker,))


def test_pickled_objects_are_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    array = np.empty(1, object)
    array[0] = Trap(str(marker))
    path = write_zip(tmp_path / "d.npz", {"in:query.npy": npy(array, allow_pickle=True)})
    with pytest.raises(DumpError, match=r"in:query in .*d.npz holds pickled objects, which are never read"):
        load_dump(path)
    with pytest.raises(DumpError, match="pickled objects"):
        save_dump(tmp_path / "e.npz", {"in:query": array})
    assert not marker.exists()
    (tmp_path / "p.npz").write_bytes(pickle.dumps({"in:query": 1}))
    with pytest.raises(DumpError, match=r"not an .npz file"):
        load_dump(tmp_path / "p.npz")


FLOATS = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"in:query.npy": b"nothing"}, "in:query in .* is not a numpy array"),
        ({"in:query.npy": b"\x93NUMPY\x09\x00" + b" " * 40}, "is not a numpy array"),
        ({"in:query.npy": header(FLOATS, b"\0" * 15)}, "has 83 bytes where its header says 84"),
        ({"in:query.npy": header(FLOATS, b"\0" * 17)}, "has 85 bytes where its header says 84"),
        ({"in:query.npy": header(FLOATS.replace("(4,)", "(4, -1)"))}, "impossible shape"),
        ({"in:query.npy": header(FLOATS.replace("(4,)", "(4, True)"))}, "impossible shape"),
        ({"in:query.npy": header(FLOATS.replace("(4,)", "(1 << 62,)"))}, "damaged header"),
        ({"in:query.npy": header(FLOATS.replace("(4,)", "(4611686018427387904,)"))}, "where its header says"),
        ({"in:query.npy": header(FLOATS.replace("(4,)", "(0, 4611686018427387904)"))}, "impossible shape"),
        ({"in:query.npy": header(FLOATS.replace("(4,)", "__import__('os').getcwd()"))}, "damaged header"),
        ({"in:query.npy": header(FLOATS.replace("'<f4'", "'<f99'"))}, "unknown dtype '<f99'"),
        ({"in:query.npy": header(FLOATS.replace("'<f4'", "'(9,9)f4'"))}, "which no tensor"),
        ({"in:query.npy": header(FLOATS.replace("'<f4'", "[('a', '<f4')]"))}, "is a record array"),
        ({"in:query.npy": header(FLOATS.replace("'<f4'", "'<U9'"))}, "has the dtype <U9, which no tensor"),
        ({"in:query.npy": header(FLOATS.replace("'<f4'", "'|V2'"))}, "save BFLOAT16 as its uint16 bit patterns"),
        ({"in:query.npy": header("-" * 9000 + "1")}, "damaged header"),
        ({"in:query.npy": header("(" * 9000)}, "damaged header"),
        ({"in:query.npy": header("[]")}, "damaged header"),
        ({"in:query.npy": header(" " * 20000)}, "header of 20001 bytes"),
        ({"readme.txt": b""}, "'readme.txt' in .* is not an array"),
        ({"in:qeury.npy": b""}, "unknown array 'in:qeury' in .*; did you mean 'in:query'"),
        ({"query.npy": b""}, "unknown array 'query'"),
        ({"in:key.npy": b""}, "key is a list, its arrays are named in:key.0"),
        ({"in:key.01.npy": b""}, "key is a list"),
        ({"in:key.99999.npy": b""}, "key is a list"),
        ({"in:actualSeqLengths.npy": b""}, "belongs to the case"),
        ({"in:numHeads.npy": b""}, "unknown array 'in:numHeads'"),
        ({"out:softmaxLse.npy": npy(np.zeros(3, np.float16))}, "out:softmaxLse in .* is float16, it must be float32"),
        ({"compare:attentionOut.npy": npy(np.zeros(3, np.uint8))}, "it must be bool"),
    ],
)
def test_damaged_and_foreign_members(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    path = write_zip(tmp_path / "d.npz", members)
    with pytest.raises(DumpError, match=message) as caught:
        load_dump(path)
    assert "\n" not in str(caught.value) and "d.npz" in str(caught.value)


def test_a_name_that_stands_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("in:query.npy", npy(np.zeros(3)))
        with pytest.warns(UserWarning):
            archive.writestr("in:query.npy", npy(np.zeros(3)))
    with pytest.raises(DumpError, match="in:query stands twice"):
        load_dump(tmp_path / "d.npz")


def test_a_zip_bomb_is_refused_by_its_directory(tmp_path: Path) -> None:
    big = npy(np.zeros(1 << 22))
    path = write_zip(tmp_path / "d.npz", {"in:query.npy": big, "in:pseShift.npy": big}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 18
    with pytest.raises(DumpError, match="unpacks to 67109120 bytes, over the limit of 50000000"):
        load_dump(path, max_bytes=50_000_000)
    assert len(load_dump(path)) == 2


def test_a_directory_that_lies_about_sizes(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "d.npz", {"in:query.npy": npy(np.zeros(1 << 16))}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    claimed = struct.unpack_from("<I", data, place + 24)[0]
    for lie in (claimed - 8, claimed + 8, 0):
        struct.pack_into("<I", data, place + 24, lie)
        path.write_bytes(data)
        with pytest.raises(DumpError):
            load_dump(path)


def test_too_many_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "MAX_ARRAYS", 2)
    path = write_zip(tmp_path / "d.npz", {f"in:key.{i}.npy": npy(np.zeros(1)) for i in range(3)})
    with pytest.raises(DumpError, match="has 3 arrays, over the limit of 2"):
        load_dump(path)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_any_damage_is_a_dump_error_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "d.npz"
    arrays = {"in:query": np.arange(6, dtype=np.float16), "in:key.0": np.zeros((2, 3), np.uint8)}
    save_dump(path, arrays, compress=data.draw(st.booleans()))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4)):
        if content:
            content[place % len(content)] = byte
    path.write_bytes(content)
    try:
        loaded = load_dump(path)
    except DumpError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(array, np.ndarray) for array in loaded.values())


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"cannot read .*absent.npz: No such file"):
        load_dump(tmp_path / "absent.npz")
    with pytest.raises(DumpError, match="is not a file"):
        load_dump(tmp_path)
    (tmp_path / "empty.npz").write_bytes(b"")
    with pytest.raises(DumpError, match=r"not an .npz file"):
        load_dump(tmp_path / "empty.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DumpError, match="is not a file"):
        load_dump(tmp_path / "pipe.npz")


def test_writing_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d.npz"
    save_dump(path, {"in:query": np.zeros(3)})
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DumpError, match=r"cannot write .*d.npz: No space left on device"):
        save_dump(path, {"in:query": np.ones(3)})
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["d.npz"]


def test_writing_to_impossible_places(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"cannot write .*No such file"):
        save_dump(tmp_path / "absent" / "d.npz", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError, match=r"cannot write .*Not a directory"):
        save_dump(tmp_path / "file" / "d.npz", {})
    with pytest.raises(DumpError, match="unknown array 'query'"):
        save_dump(tmp_path / "d.npz", {"query": np.zeros(3)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


# -- the published calls ------------------------------------------------------------------------------------------

@pytest.mark.skipif(not NUMERIC.is_dir(), reason="the numeric calls are not here (set FIAFUZZ_SHARED)")
def test_every_published_call_fits_its_case(tmp_path: Path) -> None:
    count = 0
    with open(NUMERIC / "cases.jsonl", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            case = case_from_dict(record["case"])
            dump = load_dump(NUMERIC / record["npz"])
            tensors = inputs_from_dump(case, dump)
            assert dumps.dump_inputs(tensors).keys() == {k for k in dump if k.startswith("in:")}, record["name"]
            outputs = {f"out:{name}" for name in outputs_from_dump(case, dump)}
            assert outputs == {k for k in dump if k.startswith("out:")}, record["name"]
            for key, array in dumps.dump_inputs(tensors).items():
                name, _, index = key.removeprefix("in:").partition(".")
                spec = getattr(case.inputs, name)
                spec = spec[int(index)] if index else spec
                values = decode(spec.dtype, array)
                assert np.isfinite(values.astype(np.float64)).all(), (record["name"], key)
            count += 1
    assert count == 83
