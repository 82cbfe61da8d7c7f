"""A data file, or a folder of shards and splits, to records. Nothing is fetched."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from driftlab.domains.datafiles import Records, from_arrow, read_arrow, read_file, suffix_of
from driftlab.errors import DataError

_COLUMNS_OF_FILES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")
_SHARD = re.compile(r"([-_.]?\d+)?(-of-\d+)?$")


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
    return read_file(path)


def splits(path: Path) -> list[str]:
    """Return the names of the splits of a folder; none for a file."""
    if not path.is_dir():
        return []
    if (path / "dataset_dict.json").is_file():
        return _split_names(path)
    if (path / "state.json").is_file():
        return []
    return sorted(_shards(path))


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
    parts = [read_file(file) for file in shards[_choose(path, split, sorted(shards))]]
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
            files = sorted(file for file in folder.glob(f"*{suffix}*") if suffix_of(file) == suffix)
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
    return _join([from_arrow(read_arrow(file)) for file in files])


def _join(parts: Sequence[Records]) -> Records:
    columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))

    def column(name: str) -> list[Any]:
        cells: list[Any] = []
        for part in parts:
            known = name in part.columns or (name == "" and not part.columns)
            cells += part.column(name) if known else [None] * part.size
        return cells

    return Records(columns, sum(part.size for part in parts), column)
