"""Where domains are: ``NAME=PATH`` on a command line, or a manifest of many."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftlab.domains.readers import splits
from driftlab.errors import UsageError


@dataclass(frozen=True)
class DomainSpec:
    """Where the texts of a domain are.

    Parameters
    ----------
    name : str
    path : Path
    split, column : str, optional
        Empty: the only one, or guessed.
    group : str, optional
        What the domain belongs to on the map (the colour); its own name by default.
    """

    name: str
    path: Path
    split: str = ""
    column: str = ""
    group: str = ""


def parse_spec(text: str) -> DomainSpec:
    """Read ``[GROUP/]NAME=PATH[::split][::column]``.

    A single part after the path is a split if the folder has one of that name, else a column.

    Raises
    ------
    UsageError
        If it has another form.

    Examples
    --------
    >>> parse_spec("Math/AIME=aime.jsonl::problem").column
    'problem'
    """
    label, sign, target = text.partition("=")
    group, _, name = label.rpartition("/")
    path, *parts = target.split("::")
    if not (sign and name.strip() and path.strip() and len(parts) <= 2):
        raise UsageError(f"Domain {text!r}: expected NAME=PATH, NAME=PATH::column or NAME=PATH::split::column.")
    if len(parts) == 1:
        parts = [parts[0], ""] if parts[0] in splits(Path(path)) else ["", parts[0]]
    split, column = parts or ("", "")
    return DomainSpec(name.strip(), Path(path.strip()), split, column, group.strip())


def read_manifest(path: str | Path) -> list[DomainSpec]:
    """Read many domains from a TOML or JSON file.

    One table a domain, ``[domains.NAME]`` with ``path`` and optionally ``split``, ``column`` and ``group``. Relative
    paths start at the manifest's folder.

    Raises
    ------
    UsageError
        If the file is missing or has another form; names the entry.
    """
    file = Path(path)
    try:
        raw = file.read_text(encoding="utf-8")
        content = json.loads(raw) if file.suffix == ".json" else tomllib.loads(raw)
    except (OSError, ValueError) as error:
        raise UsageError(f"Manifest {file}: expected a TOML or JSON file, {error}.") from None
    entries = content.get("domains") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise UsageError(f"Manifest {file}: expected tables [domains.NAME], found none.")
    return [_manifest_entry(file, str(name), entry) for name, entry in entries.items()]


def _manifest_entry(file: Path, name: str, entry: Any) -> DomainSpec:
    known = {"path", "split", "column", "group"}
    if not (isinstance(entry, dict) and "path" in entry and entry.keys() <= known):
        found = ", ".join(map(str, entry)) if isinstance(entry, dict) else type(entry).__name__
        raise UsageError(f"Manifest {file}: domain {name!r}: expected path [, split, column, group], found {found}.")
    values = {key: str(value) for key, value in entry.items() if key != "path"}
    return DomainSpec(name, file.parent / str(entry["path"]), **values)
