"""Runs of a study that differ by their seed alone, drawn as one line."""

import pandas as pd

from driftlab.results import ResultsDir


def methods_of(results: ResultsDir) -> dict[str, str]:
    """Return the method of each run where some method has several seeds, else nothing: every run is its own line."""
    if not results.has("runs"):
        return {}
    runs = results.table("runs")
    runs = runs[runs["status"] == "ok"]
    repeated = runs["method"].duplicated().any()
    return dict(zip(runs["run"], runs["method"], strict=True)) if repeated else {}


def seeds_note(n_seeds: int) -> str:
    """Return what a footnote says about lines over seeds."""
    return f"mean over {n_seeds} seeds, band: their range"


def fold(rows: pd.DataFrame, methods: dict[str, str], keys: list[str], value: str) -> pd.DataFrame:
    """Replace runs by their methods: ``value`` becomes the mean over seeds, ``low`` and ``high`` its range.

    Other columns are averaged where they are numbers, and taken from the first seed where they are not.
    """
    named = rows.assign(run=rows["run"].map(methods))
    groups = named.groupby(["run", *keys], sort=False, dropna=False)
    how = {
        name: "mean" if pd.api.types.is_float_dtype(rows[name]) else "first"
        for name in rows
        if name not in ("run", *keys)
    }
    folded = groups.agg(how)
    folded["low"], folded["high"], folded["n_seeds"] = groups[value].min(), groups[value].max(), groups.size()
    return folded.reset_index()
