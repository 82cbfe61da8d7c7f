"""The tables ``spectral`` and ``spectral_summary`` while they grow by one checkpoint at a time.

The table itself is the record of what is done: each addition writes it whole, under a temporary name that is then
renamed, so a killed run loses the checkpoint in flight and nothing else.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from driftlab.results import ResultsDir
from driftlab.tables import SPECTRAL, summarise

TABLES = ("spectral", "spectral_summary")
Key = tuple[str, str]
"""Run and label of a checkpoint."""


def stored(results: ResultsDir) -> pd.DataFrame:
    """Return the rows so far; an empty table before the first."""
    if results.has("spectral"):
        return results.table("spectral")
    empty: pd.DataFrame = SPECTRAL.empty_table().to_pandas()
    return empty


def keys(frame: pd.DataFrame) -> list[Key]:
    """Return the checkpoints that have rows, in the table's order."""
    return list(dict.fromkeys(zip(frame["run"], frame["label"], strict=True)))


def add_rows(results: ResultsDir, rows: Sequence[dict[str, Any]], order: Sequence[Key] = ()) -> None:
    """Add the rows of a checkpoint and write both tables.

    Parameters
    ----------
    results : ResultsDir
        Where to write.
    rows : sequence of dict
        Rows of schema ``SPECTRAL``; may be empty to write the tables anew in another order.
    order : sequence of (run, label), optional
        All checkpoints in the order of training: the column ``order`` counts them within their run. Without it rows
        stand as they came, with the order they have.
    """
    new = pa.Table.from_pylist(list(rows), schema=SPECTRAL).to_pandas()
    before = stored(results)
    parts = [part for part in (before, new) if len(part)]
    frame = pd.concat(parts, ignore_index=True) if parts else before
    rewrite(results, _ordered(frame, order) if order else frame)


def rewrite(results: ResultsDir, frame: pd.DataFrame) -> None:
    """Write both tables from the rows."""
    table = pa.Table.from_pandas(frame, schema=SPECTRAL, preserve_index=False)
    results.write_table("spectral", table)
    results.write_table("spectral_summary", summarise(table.to_pandas()))


def _ordered(frame: pd.DataFrame, order: Sequence[Key]) -> pd.DataFrame:
    runs: dict[str, int] = {}
    place, count = {}, {}
    for i, (run, label) in enumerate(order):
        runs[run] = runs.get(run, 0) + 1
        place[run, label], count[run, label] = i, runs[run]
    found = list(zip(frame["run"], frame["label"], strict=True))
    ranked = frame.assign(order=[count[key] for key in found], _place=[place[key] for key in found])
    return ranked.sort_values("_place", kind="stable").drop(columns="_place")
