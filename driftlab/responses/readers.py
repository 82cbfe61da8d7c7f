"""Files of responses to one normal form, with a count of everything that cannot be paired."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from driftlab.domains.datafiles import Records
from driftlab.domains.readers import read
from driftlab.errors import DataError
from driftlab.responses.forms import choose_form

COLUMNS = ("key", "id", "task", "prompt", "response", "reward", "truncated", "tokens", "problem")
BY_ID, BY_PROMPT = "id", "prompt"
AMBIGUOUS, UNREADABLE = "several responses with this id", "no single text"


@dataclass(frozen=True)
class ResponseSet:
    """The responses of one model at one moment.

    Attributes
    ----------
    source : str
        The file, or the files.
    form : str
        ``lm-eval``, ``verl`` or ``records``.
    keyed : {"id", "prompt"}
        What its responses are found by: their id, or where there is none the exact prompt.
    table : DataFrame
        One row a key, columns :data:`COLUMNS`. ``task`` stands in the key, so ids need to be unique within a task.
        ``problem`` says why a row cannot be compared; empty for most.
    facts : dict of str to int
        ``rows`` of the file; of them ``repeats`` (the same response again: an id under several filters, a file
        joined twice), ``ambiguous`` (different responses under one id), ``unreadable``, ``empty``, ``truncated``.
    """

    source: str
    form: str
    keyed: str
    table: pd.DataFrame
    facts: dict[str, int]

    def digest(self) -> str:
        """Return a digest of everything that is measured."""
        content = self.table[["key", "prompt", "response"]].astype(str)
        return hashlib.sha256(content.to_csv(index=False).encode(errors="surrogatepass")).hexdigest()


def read_responses(paths: Path | Sequence[Path], column: str = "") -> ResponseSet:
    """Read the responses of one model from a file, or from several that belong together.

    Parameters
    ----------
    paths : Path or sequence of Path
        JSON Lines, JSON, CSV or Parquet, gzipped or not, or a folder of such shards.
    column : str, optional
        The column of the responses; guessed by default.

    Raises
    ------
    DataError
        If a file cannot be read or has no column of responses; if there are neither ids nor prompts; if there are no
        ids and a prompt has several responses.
    """
    files = [paths] if isinstance(paths, Path) else list(paths)
    forms, rows = [], []
    for file in files:
        records = read(file)
        if not isinstance(records, Records):
            raise DataError(f"Responses {file}: expected texts, found arrays.")
        form, cells = choose_form(records.columns, file, column)
        forms.append(form)
        columns = {name: records.column(name) for name in records.columns}
        rows += [cells({name: found[row] for name, found in columns.items()}) for row in range(records.size)]
    source = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
    return normal_form(rows, source, forms[0])


def normal_form(rows: Sequence[dict[str, Any]], source: str, form: str) -> ResponseSet:
    """Key the rows of a file, and set aside those that cannot be told apart."""
    keyed = _keyed(rows, source)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_key(row, keyed), []).append(row)
    kept, repeats, ambiguous = [], 0, 0
    for key, found in groups.items():
        different = len({(row["prompt"], row["response"]) for row in found}) > 1
        repeats += 0 if different else len(found) - 1
        ambiguous += len(found) if different else 0
        problem = AMBIGUOUS if different else "" if found[0]["response"] is not None else UNREADABLE
        kept.append(found[0] | {"key": key, "problem": problem})
    if keyed == BY_PROMPT and ambiguous:
        raise DataError(
            f"Responses {source}: there are no ids, and {ambiguous} of {len(rows)} responses share their prompt with "
            "another one, so they cannot be paired.",
            f"Add a column {BY_ID!r}, or keep one response a prompt.",
        )
    table = pd.DataFrame(kept, columns=COLUMNS).astype({"tokens": "Int64", "truncated": "boolean", "reward": float})
    return ResponseSet(source, form, keyed, table, _facts(table, len(rows), repeats, ambiguous))


def _facts(table: pd.DataFrame, rows: int, repeats: int, ambiguous: int) -> dict[str, int]:
    usable = table["problem"] == ""
    return {
        "rows": rows,
        "repeats": repeats,
        "ambiguous": ambiguous,
        "unreadable": int((table["problem"] == UNREADABLE).sum()),
        "empty": int(is_empty(table["response"][usable]).sum()),
        "truncated": int(table["truncated"][usable].fillna(False).sum()),
    }


def is_empty(responses: "pd.Series[Any]") -> "pd.Series[bool]":
    """Say which responses hold nothing but white space."""
    return responses.fillna("").str.strip() == ""


def _keyed(rows: Sequence[dict[str, Any]], source: str) -> str:
    without = sum(not row["id"] for row in rows)
    if not without:
        return BY_ID
    if without < len(rows):
        raise DataError(
            f"Responses {source}: expected an id in every row or in none, found {without} of {len(rows)} without."
        )
    if not all(row["prompt"].strip() for row in rows):
        raise DataError(
            f"Responses {source}: found neither ids nor prompts, and rows are never paired by their order.",
            f"Add a column {BY_ID!r}.",
        )
    return BY_PROMPT


def _key(row: dict[str, Any], keyed: str) -> str:
    if keyed == BY_PROMPT:
        return str(row["prompt"]).strip()
    task, name = row["task"], row["id"]
    return name if not task or name.startswith(f"{task}/") else f"{task}/{name}"
