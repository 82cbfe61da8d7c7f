"""Several models answer one file of prompts, batch after batch, into a results folder that survives a kill."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from driftlab.domains.columns import text_of
from driftlab.domains.datafiles import Records
from driftlab.domains.readers import read
from driftlab.errors import DataError, UsageError
from driftlab.files import write_text
from driftlab.responses.generate import Asked, Sampling, render, respond
from driftlab.results import ResultsDir
from driftlab.training.language import load_language

TABLE = "responses"
SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("place", pa.int64()),
        ("id", pa.string()),
        ("task", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("truncated", pa.bool_()),
        ("tokens", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("reason", pa.string()),
    ]
)
"""One row for each (model, prompt); ``place`` is the prompt's line in the file."""


def read_prompts(path: Path, limit: int | None = None) -> list[Asked]:
    """Read prompts: a data file with columns ``id`` and ``prompt``, and perhaps ``system`` and ``task``.

    A file of responses will do: its prompts are asked again.

    Raises
    ------
    DataError
        If a column is missing, or an id is missing or appears twice, or a prompt is empty.
    """
    records = read(path)
    if not isinstance(records, Records) or not {"id", "prompt"} <= set(records.columns):
        found = ", ".join(records.columns) if isinstance(records, Records) and records.columns else "no named columns"
        raise DataError(
            f"Prompts {path}: expected columns id and prompt, found {found}.",
            "Give each prompt an id that stays the same: responses are joined by it.",
        )
    columns = {name: records.column(name) for name in ("id", "prompt", "system", "task") if name in records.columns}
    prompts = []
    for row in range(records.size):
        cells = {name: text_of(cells[row]) or "" for name, cells in columns.items()}
        if not (cells["id"].strip() and cells["prompt"].strip()):
            raise DataError(f"Prompts {path}: row {row} has no {'id' if not cells['id'].strip() else 'prompt'}.")
        prompts.append(Asked(**cells))
    ids = [asked.id for asked in prompts]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"Prompts {path}: expected an id once, found {twice!r} {ids.count(twice)} times.")
    return prompts[:limit]


def describe(models: Sequence[tuple[str, Path]], prompts: Sequence[Asked], sampling: Sampling) -> dict[str, Any]:
    """Return everything that changes a response, for the manifest: a resumed run must have the same."""
    content = hashlib.sha256(json.dumps([asdict(asked) for asked in prompts]).encode()).hexdigest()
    return {
        "models": [{"name": name, "path": str(path), "files": _files(path)} for name, path in models],
        "prompts": {"n": len(prompts), "content": content},
        "sampling": asdict(sampling),
    }


def name_models(arguments: Sequence[str]) -> list[tuple[str, Path]]:
    """Read ``[NAME=]FOLDER`` arguments; without a name the folder's own.

    Raises
    ------
    UsageError
        If two models have one name or a name is no file name.

    Examples
    --------
    >>> name_models(["base=models/x", "models/y"])[1][0]
    'y'
    """
    named = []
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or "/" in name or Path(argument).exists():
            name, path = Path(argument).resolve().name, argument
        named.append((name, Path(path)))
    names = [name for name, _ in named]
    twice = [name for name in names if names.count(name) > 1 or not name]
    if twice:
        raise UsageError(f"Two models are called {twice[0]!r}: names must differ.", "Give NAME=FOLDER.")
    return named


def answer_all(
    models: Sequence[tuple[str, Path]],
    prompts: Sequence[Asked],
    sampling: Sampling,
    results: ResultsDir,
    *,
    batch: int = 8,
    device: str = "cpu",
    bf16: bool = False,
    advance: Callable[[float, str], None] = lambda amount, what: None,
) -> pd.DataFrame:
    """Fill the table ``responses`` and a file ``responses/NAME.jsonl`` for each model.

    Parameters
    ----------
    models : sequence of (name, folder)
    prompts : sequence of Asked
    sampling : Sampling
    results : ResultsDir
        Batches that are there already are not made again.
    batch : int, default 8
        Prompts answered together; those of similar length share a batch.
    device, bf16
        Where and in which precision of the blocks.
    advance : callable, optional
        Called with the number of prompts done since the last call.

    Raises
    ------
    CheckpointError
        If a folder holds no causal language model.
    """
    if not prompts or batch < 1:
        raise UsageError(f"Expected prompts and a batch of 1 or more, found {len(prompts)} prompts, batch {batch}.")
    units: list[str] = []
    for name, folder in models:
        language = None
        for unit, places in _batches(name, prompts, batch):
            units.append(unit)
            if not results.has_part(TABLE, unit):
                if language is None:
                    language = load_language(folder, torch.device(device), bf16=bf16)
                some = [prompts[place] for place in places]
                rows = respond(language, some, sampling, [render(language, asked) for asked in some])
                made = [{"model": name, "place": place, **row} for place, row in zip(places, rows, strict=True)]
                results.write_part(TABLE, unit, pa.Table.from_pylist(made, schema=SCHEMA))
            advance(len(places), name)
    merged: pd.DataFrame = results.merge_parts(TABLE, units, SCHEMA).to_pandas()
    order = [name for name, _ in models]
    for stale in (results.path / TABLE).glob("*.jsonl"):  # of a run that --force has replaced
        if stale.stem not in order:
            stale.unlink()
    table = merged.assign(_=merged["model"].map(order.index)).sort_values(["_", "place"]).drop(columns="_")
    for name in order:
        _write_lines(results.path / TABLE / f"{name}.jsonl", table[table["model"] == name])
    results.write_table(TABLE, pa.Table.from_pandas(table, schema=SCHEMA, preserve_index=False))
    return table.reset_index(drop=True)


def _batches(name: str, prompts: Sequence[Asked], batch: int) -> Iterator[tuple[str, list[int]]]:
    """Yield batches of prompts of similar length: padding is computed and thrown away."""
    order = sorted(range(len(prompts)), key=lambda place: (len(prompts[place].prompt), place))
    for start in range(0, len(order), batch):
        yield f"{name} {start}-{batch}", order[start : start + batch]


def _write_lines(file: Path, rows: pd.DataFrame) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = rows.drop(columns=["model", "place"]).to_dict("records")
    lines = [json.dumps({key: _cell(value) for key, value in row.items()}, ensure_ascii=False) for row in kept]
    write_text(file, "".join(f"{line}\n" for line in lines))


def _cell(value: Any) -> Any:
    if value is None or value is pd.NA or value != value:
        return None
    return int(value) if isinstance(value, float) else value


def _files(folder: Path) -> list[list[Any]]:
    """Return name and size of every file, and the content of the small ones as a digest."""
    found: list[list[Any]] = []
    for file in sorted(path for path in folder.glob("*") if path.is_file()):
        size = file.stat().st_size
        found.append([file.name, size, hashlib.sha256(file.read_bytes()).hexdigest() if size < 1 << 20 else ""])
    return found
