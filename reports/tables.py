"""The data frames of runs as files: CSV that a spreadsheet opens without running anything, and Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fiafuzz.campaign.whole_files import write_whole

from .formats import MissingExtra
from .frame_columns import FRAMES
from .frames import Run, load_run

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "|", "%")
"""First characters by which a spreadsheet takes a cell for a formula or a command."""


def csv_report(paths: Sequence[Path]) -> dict[str, bytes]:
    """The frames of one or several runs as CSV: file name -> content. RunError when a run cannot be read."""
    return csv_tables(_frames(paths))


def parquet_report(paths: Sequence[Path]) -> dict[str, bytes]:
    """The frames of one or several runs as Parquet: file name -> content. RunError when a run cannot be read, MissingExtra
    without pyarrow."""
    _pyarrow()
    return parquet_tables(_frames(paths))


def _frames(paths: Sequence[Path]) -> dict[str, pd.DataFrame]:
    if len(paths) == 1:
        return load_run(paths[0]).frames()
    return joined(load_run(path) for path in paths)


def joined(runs: Iterable[Run]) -> dict[str, pd.DataFrame]:
    """The frames of several runs, one below the other, with a first column ``run`` that says which."""
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in FRAMES}
    for run in runs:
        for name, frame in run.frames().items():
            found[name].append(frame.assign(run=pd.array([run.path.name] * len(frame), dtype="string")))
    return {name: _below(frames) for name, frames in found.items()}


def _below(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Frames one below the other. Words are joined as words: the runs' categories differ."""
    columns = dict.fromkeys(["run", *(c for frame in frames for c in frame.columns)])
    data = {}
    for column in columns:
        parts = [f[column] if column in f else pd.Series([None] * len(f), dtype=object) for f in frames]
        if any(not isinstance(part.dtype, pd.CategoricalDtype) and part.dtype != object for part in parts):
            data[column] = pd.concat(parts, ignore_index=True)
        else:
            data[column] = pd.concat([part.astype(object) for part in parts], ignore_index=True).astype("category")
    return pd.DataFrame(data)


def csv_tables(frames: Mapping[str, pd.DataFrame]) -> dict[str, bytes]:
    """Frames as CSV, UTF-8: the names of the columns first, missing values empty, True and False in words.

    Text that a spreadsheet would take for a formula gets an apostrophe in front; control characters become blanks.
    """
    found = {}
    for name, frame in frames.items():
        text = io.StringIO()
        harmless(frame).to_csv(text, index=False, lineterminator="\n")
        found[f"{name}.csv"] = text.getvalue().encode("utf-8", "replace")
    return found


def harmless(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its text made safe for a spreadsheet, column names included; numbers stay as they are."""
    data: dict[str, Any] = {}
    for name in frame.columns:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            # Words first, cells by number: two words that become equal need no care then.
            words = [_cell(word) for word in column.cat.categories]
            column = pd.Series([words[code] if code >= 0 else None for code in column.cat.codes], dtype=object)
        elif not pd.api.types.is_numeric_dtype(column.dtype):
            column = pd.Series([None if pd.isna(value) else _cell(value) for value in column], dtype=object)
        data[_cell(name)] = column.to_numpy()
    return pd.DataFrame(data)


def _cell(value: object) -> str:
    # A line end stays (the cell is quoted then); a lone surrogate has no place in UTF-8.
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in str(value)).encode("utf-8", "replace").decode()
    return f"'{text}" if str(value).lstrip(" ").startswith(_FORMULA) or text.lstrip(" ").startswith(_FORMULA) else text


def parquet_tables(frames: Mapping[str, pd.DataFrame]) -> dict[str, bytes]:
    """Frames as Parquet; categories become dictionaries of strings. MissingExtra without pyarrow."""
    pyarrow, parquet = _pyarrow()
    found = {}
    for name, frame in frames.items():
        plain = frame.copy()
        for column in plain.columns:
            kinds = plain[column].dtype
            if isinstance(kinds, pd.CategoricalDtype) and not len(kinds.categories):
                # Without a word the dictionary would have no type, and files of several runs would not fit together.
                plain[column] = pd.Series([None] * len(plain), dtype="string")
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.Table.from_pandas(plain, preserve_index=False), sink, compression="zstd")
        found[f"{name}.parquet"] = sink.getvalue().to_pybytes()
    return found


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("the format parquet needs pyarrow; install it with: pip install 'fiafuzz[parquet]'") from None
    return pyarrow, pyarrow.parquet


def write_tables(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, which is made, each whole or not at all; returns the paths. OSError when one cannot be
    written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, data in files.items():
        write_whole(folder / name, data)
        paths.append(folder / name)
    return paths
