"""Data files of any common form to records: JSON, JSON Lines, CSV, TSV, Parquet, Arrow, text, NumPy; gzipped or not.

The form is taken from the content where it can be told (JSON Lines under a ``.json`` name is common) and from the
name otherwise. Nothing is unpickled and nothing is fetched.
"""

import csv
import gzip
import io
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from driftlab.errors import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".npy", ".npz")
_COLUMNS_OF_FILES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")
_SHARD = re.compile(r"([-_.]?\d+)?(-of-\d+)?$")


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


def read(path: Path, split: str = "") -> "Records | Mapping[str, NDArray[Any]]":
    """Read a data file or folder.

    Parameters
    ----------
    path : Path
        A file, a folder of shards, or a folder written by ``Dataset.save_to_disk``.
    split : str, optional
        Which split of a folder; needed where there are several.

    Returns
    -------
    Records or mapping of str to array
        Arrays for ``.npy`` (under the key ``""``) and ``.npz``.

    Raises
    ------
    DataError
        If nothing is there, or it is damaged, empty or of no known form.
    """
    if path.is_dir():
        return _read_folder(path, split)
    if not path.is_file():
        hub_like = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path))
        hint = "Data sets are read from local files: download it first." if hub_like else ""
        raise DataError(f"{path}: expected a data file or folder, found nothing there.", hint)
    if split:
        raise DataError(f"{path}: expected a folder with split {split!r}, found a single file.")
    return _read_file(path)


def splits(path: Path) -> list[str]:
    """Return the names of the splits of a folder; none for a file."""
    if not path.is_dir():
        return []
    if (path / "dataset_dict.json").is_file():
        return _split_names(path)
    if (path / "state.json").is_file():
        return []
    return sorted(_shards(path))


# -- folders ------------------------------------------------------------


def _read_folder(path: Path, split: str) -> Records:
    if (path / "dataset_dict.json").is_file():
        return _read_saved(path / _choose(path, split, _split_names(path)))
    if (path / "state.json").is_file():
        if split:
            raise DataError(f"{path}: expected split {split!r}, found a data set saved without splits.")
        return _read_saved(path)
    shards = _shards(path)
    if not shards:
        raise DataError(
            f"{path}: expected data files, found none of {', '.join(_COLUMNS_OF_FILES)} in it.",
            "Give the file itself.",
        )
    parts = [_read_file(file) for file in shards[_choose(path, split, sorted(shards))]]
    return _join([part for part in parts if isinstance(part, Records)])


def _split_names(path: Path) -> list[str]:
    try:
        return [str(name) for name in json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}/dataset_dict.json: expected a list of splits, found something else.") from None


def _choose(path: Path, split: str, found: Sequence[str]) -> str:
    if split and split not in found:
        raise DataError(f"{path}: expected split {split!r}, found {', '.join(found)}.")
    if not split and len(found) > 1:
        raise DataError(f"{path}: found {len(found)} splits ({', '.join(found)}).", "Name one: PATH::SPLIT.")
    return split or found[0]


def _shards(path: Path) -> dict[str, list[Path]]:
    """Group the data files of a folder (or of its ``data`` folder) by split, taking the first form that is there."""
    for folder in (path, path / "data"):
        for suffix in _COLUMNS_OF_FILES:
            files = sorted(file for file in folder.glob(f"*{suffix}*") if _suffix(file) == suffix)
            if suffix == ".json":
                files = [file for file in files if file.name not in ("dataset_info.json", "dataset_infos.json")]
            groups: dict[str, list[Path]] = {}
            for file in files:
                stem = file.name[: file.name.lower().index(suffix)]
                groups.setdefault(_SHARD.sub("", stem) or stem, []).append(file)
            if groups:
                return groups
    return {}


def _read_saved(path: Path) -> Records:
    """Read a folder of ``Dataset.save_to_disk``: the order of its files stands in ``state.json``."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        files = [path / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{path}: expected a saved data set with state.json, found something else.") from None
    if state.get("_indices_data_files"):
        raise DataError(
            f"{path}: the data set was saved with an index of selected rows, which is not read here.",
            "Save it again with dataset.flatten_indices().save_to_disk(...).",
        )
    return _join([_from_arrow(_arrow_file(file)) for file in files])


def _join(parts: Sequence[Records]) -> Records:
    columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))

    def column(name: str) -> list[Any]:
        cells: list[Any] = []
        for part in parts:
            known = name in part.columns or (name == "" and not part.columns)
            cells += part.column(name) if known else [None] * part.size
        return cells

    return Records(columns, sum(part.size for part in parts), column)


# -- files --------------------------------------------------------------


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def _read_file(path: Path) -> "Records | Mapping[str, NDArray[Any]]":
    if path.stat().st_size == 0:
        raise DataError(f"{path}: expected data, found an empty file.")
    with path.open("rb") as handle:
        head = handle.read(8)
    if head[:4] == b"PAR1":
        return _from_arrow(_guard(path, "Parquet", lambda: pq.read_table(path)))
    if head[:6] == b"ARROW1" or _suffix(path) == ".arrow":
        return _from_arrow(_arrow_file(path))
    if head[:6] == b"\x93NUMPY" or _suffix(path) in (".npy", ".npz"):
        arrays: Mapping[str, NDArray[Any]] = _guard(path, "NumPy", lambda: _arrays(path))
        return arrays
    if _suffix(path) == ".parquet":
        raise DataError(f"{path}: expected a Parquet file, found one that does not begin with PAR1.")
    text = _decode(path)
    if not text.strip():
        raise DataError(f"{path}: expected data, found only blank lines.")
    if _suffix(path) in (".csv", ".tsv"):
        return _from_csv(path, text, "\t" if _suffix(path) == ".tsv" else ",")
    if _suffix(path) in (".json", ".jsonl", ".ndjson"):
        return _from_values(path, _json_values(path, text))
    if _suffix(path) == ".txt" or (not _suffix(path) and path.suffix in ("", ".gz", ".md")):
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


def _arrow_file(path: Path) -> pa.Table:
    def load() -> pa.Table:
        with pa.memory_map(str(path)) as source:
            try:
                return pa.ipc.open_stream(source).read_all()
            except pa.ArrowInvalid:
                return pa.ipc.open_file(source).read_all()

    table: pa.Table = _guard(path, "Arrow", load)
    return table


def _from_arrow(table: pa.Table) -> Records:
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
