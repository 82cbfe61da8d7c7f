"""One data file to records: JSON, JSON Lines, CSV, TSV, Parquet, Arrow, text, NumPy; gzipped or not.

The form is taken from the content where it can be told (JSON Lines under a ``.json`` name is common) and from the
name otherwise. Nothing is unpickled.
"""

import csv
import gzip
import io
import json
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from driftlab.errors import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".npy", ".npz")


@dataclass(frozen=True)
class Records:
    """Rows of a data set, column by column.

    Parameters
    ----------
    columns : tuple of str
        Their names; empty if the rows are bare values (lines of text, a JSON list of strings).
    size : int
        Number of rows.
    column : callable
        Returns the cells of one column; of ``""`` the bare values.
    """

    columns: tuple[str, ...]
    size: int
    column: Callable[[str], list[Any]]


def suffix_of(path: Path) -> str:
    """Return the known suffix of a file, before ``.gz``; empty for another."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def read_file(path: Path) -> "Records | Mapping[str, NDArray[Any]]":
    """Read one file; arrays for ``.npy`` (under the key ``""``) and ``.npz``.

    Raises
    ------
    DataError
        If it is empty, damaged or of no known form.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path}: expected data, found an empty file.")
    with path.open("rb") as handle:
        head = handle.read(8)
    if head[:4] == b"PAR1":
        return from_arrow(_guard(path, "Parquet", lambda: pq.read_table(path)))
    if head[:6] == b"ARROW1" or suffix_of(path) == ".arrow":
        return from_arrow(read_arrow(path))
    if head[:6] == b"\x93NUMPY" or suffix_of(path) in (".npy", ".npz"):
        arrays: Mapping[str, NDArray[Any]] = _guard(path, "NumPy", lambda: _arrays(path))
        return arrays
    if suffix_of(path) == ".parquet":
        raise DataError(f"{path}: expected a Parquet file, found one that does not begin with PAR1.")
    text = _decode(path)
    if not text.strip():
        raise DataError(f"{path}: expected data, found only blank lines.")
    if suffix_of(path) in (".csv", ".tsv"):
        return _from_csv(path, text, "\t" if suffix_of(path) == ".tsv" else ",")
    if suffix_of(path) in (".json", ".jsonl", ".ndjson"):
        return _from_values(path, _json_values(path, text))
    if suffix_of(path) == ".txt" or (not suffix_of(path) and path.suffix in ("", ".gz", ".md")):
        lines = text.splitlines()
        return Records((), len(lines), lambda name: list(lines))
    raise DataError(f"{path}: its form is unknown: expected one of {', '.join(SUFFIXES)}, with or without .gz.")


def _guard(path: Path, form: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a {form} file, found a damaged one: {_first_line(error)}.") from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    with path.open("rb") as handle:
        loaded = np.load(handle, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}


def read_arrow(path: Path) -> pa.Table:
    """Read an Arrow file in either of its two layouts."""

    def load() -> pa.Table:
        with pa.memory_map(str(path)) as source:
            try:
                return pa.ipc.open_stream(source).read_all()
            except pa.ArrowInvalid:
                return pa.ipc.open_file(source).read_all()

    table: pa.Table = _guard(path, "Arrow", load)
    return table


def from_arrow(table: pa.Table) -> Records:
    """Return a table as records; only the columns that are asked for become Python objects."""
    return Records(tuple(table.column_names), table.num_rows, lambda name: table.column(name).to_pylist())


def _decode(path: Path) -> str:
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = _guard(path, "gzip", lambda: gzip.decompress(raw))
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8 text, found byte 0x{raw[error.start]:02x} at position {error.start}.",
            "Convert it to UTF-8.",
        ) from None


def _from_csv(path: Path, text: str, delimiter: str) -> Records:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num} is no CSV: {error}.") from None
    for number, row in enumerate(rows, start=1):
        if None in row:
            raise DataError(
                f"{path}: record {number} has more cells than the header's {len(reader.fieldnames or ())}.",
                "Quote cells that contain the separator.",
            )
    columns = tuple(str(name) for name in reader.fieldnames or ())
    return Records(columns, len(rows), lambda name: [row[name] for row in rows])


def _json_values(path: Path, text: str) -> list[Any]:
    """Return the records of a JSON file: a list, an object of lists, an object around a list, or one value a line."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        if len(lines) < 2:
            raise DataError(f"{path}: expected JSON, found {_first_line(error)}.") from None
        return [_json_line(path, number, line) for number, line in lines]
    if isinstance(whole, list):
        return whole
    if isinstance(whole, dict):
        return _records_of(whole)
    raise DataError(f"{path}: expected a JSON list or object, found a single {type(whole).__name__}.")


def _json_line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}: line {number} is no JSON: {_first_line(error)}.") from None


def _records_of(whole: dict[str, Any]) -> list[Any]:
    lists = {name: value for name, value in whole.items() if isinstance(value, list)}
    if lists and len(lists) == len(whole) and len({len(value) for value in lists.values()}) == 1:
        if len(lists) == 1 and any(isinstance(row, dict) for row in next(iter(lists.values()))):
            name, rows = next(iter(lists.items()))
            return rows if not _is_turn(rows[0]) else [{name: rows}]
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    inner = [value for value in lists.values() if value and all(isinstance(row, dict) for row in value)]
    if len(inner) == 1 and not _is_turn(inner[0][0]):
        return inner[0]
    if whole and all(isinstance(value, dict) for value in whole.values()):
        return list(whole.values())
    return [whole]


def _is_turn(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.keys() & {"role", "from"})


def _from_values(path: Path, values: list[Any]) -> Records:
    if not values:
        raise DataError(f"{path}: expected records, found an empty list.")
    if not any(isinstance(value, dict) and not _is_turn(value) for value in values):
        return Records((), len(values), lambda name: values)
    columns = tuple(dict.fromkeys(str(key) for value in values if isinstance(value, dict) for key in value))
    return Records(
        columns, len(values), lambda name: [value.get(name) if isinstance(value, dict) else None for value in values]
    )
