"""The spectral tables: their columns, and the summary over matrices."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from driftlab.multiplicity import holm
from driftlab.separation import RANDOM_LEVEL, Separation, compare, verdict
from driftlab.spectral.measures import ESTIMATED, MEASURES

KEYS = ("run", "label", "stage", "step", "order")
NULLED = tuple(name for name, measure in MEASURES.items() if measure.nulls)
POOLED = ("update_density", "update_sparsity")
_QUARTILES = (0.25, 0.5, 0.75)
HEADLINE = ("nss", "max_angle_left_deg", "mask_overlap", "mask_update_iou", "update_density", "rel_frobenius")

SPECTRAL = pa.schema(
    [
        ("run", pa.string()),
        ("label", pa.string()),
        ("stage", pa.string()),
        ("step", pa.int64()),
        ("order", pa.int64()),
        ("matrix", pa.string()),
        ("layer", pa.int64()),
        ("role", pa.string()),
        ("expert", pa.int64()),
        ("rows", pa.int64()),
        ("cols", pa.int64()),
        ("numel", pa.int64()),
        ("base_dtype", pa.string()),
        ("dtype", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
        *((name, pa.float64()) for name in MEASURES),
        *((f"{name}_error", pa.float64()) for name in ESTIMATED),
        *((f"{name}_null", pa.float64()) for name in NULLED),
        ("angle_rank", pa.int64()),
        ("mask_rank", pa.int64()),
        ("mask_fraction", pa.float64()),
        ("method", pa.string()),
        ("seconds", pa.float64()),
    ]
)
"""One row for each (run, checkpoint, tensor). ``NAME_error`` and ``NAME_null`` stand beside the measures."""

STATISTICS = ("mean", "median", "q25", "q75", "weighted_mean", "error")
NULL_STATISTICS = ("null_mean", "null_median", "null_q25", "null_q75", "null_ratio", "p_value", "p_holm")
SUMMARY = pa.schema(
    [
        *(SPECTRAL.field(name) for name in KEYS),
        ("group_by", pa.string()),
        ("group", pa.string()),
        ("measure", pa.string()),
        ("n", pa.int64()),
        *((name, pa.float64()) for name in (*STATISTICS, *NULL_STATISTICS)),
        ("above", pa.int64()),
        ("below", pa.int64()),
        ("verdict", pa.string()),
    ]
)
"""One row for each (run, checkpoint, group, measure)."""


def summarise(spectral: pd.DataFrame) -> pa.Table:
    """Average the spectral table over matrices, for the whole model, each layer and each role.

    Parameters
    ----------
    spectral : DataFrame
        The table ``spectral``.

    Returns
    -------
    Table of schema :data:`SUMMARY`
        One row for each (run, label, group_by, group, measure), with ``n`` matrices, ``mean`` (unweighted, as
        arXiv 2606.07082), ``median``, ``q25``, ``q75``, ``weighted_mean`` (by number of parameters), ``error`` (median
        of the error estimates), the same statistics of the nulls, the paired sign test of values against nulls
        (``above``, ``below``, ``null_ratio``, ``p_value``, and ``p_holm`` adjusted for the measures of the group) and
        its ``verdict``; see :mod:`driftlab.separation`. The measures
        ``pooled_update_density`` and ``pooled_update_sparsity`` count every compared tensor, embeddings and vectors
        too; their ``weighted_mean`` is the share over all parameters.
    """
    rows = pd.DataFrame(list(_summary_rows(spectral)), columns=SUMMARY.names)
    return pa.Table.from_pandas(rows, schema=SUMMARY, preserve_index=False)


def headline(spectral: pd.DataFrame, measures: Iterable[str] = HEADLINE) -> pd.DataFrame:
    """Return one line a checkpoint: how many matrices were measured, how many rows failed, the means.

    Parameters
    ----------
    spectral : DataFrame
        The table ``spectral``.
    measures : iterable of str
        Columns to average over the measured matrices; those never measured are left out.
    """
    ok, keys = spectral["status"] == "ok", ["run", "label", "order"]
    counts = spectral.assign(matrices=ok, failed=spectral["status"] == "failed")
    lines = counts.groupby(keys, sort=False)[["matrices", "failed"]].sum()
    if not lines["failed"].any():
        lines = lines.drop(columns="failed")
    shown = [name for name in measures if spectral.loc[ok, name].notna().any()]
    means = spectral[ok].groupby(keys, sort=False)[shown].mean()
    return lines.join(means).reset_index().drop(columns="order")


def _summary_rows(spectral: pd.DataFrame) -> Iterator[dict[str, Any]]:
    table = spectral.reset_index(drop=True)
    numbers = _Numbers(table)
    for key, rows in table.groupby(list(KEYS), sort=False, dropna=False):
        head = dict(zip(KEYS, key, strict=True))
        for line in numbers.lines(rows.index.to_numpy()):
            yield {**head, "group_by": "model", "group": "all", **line}
        for column in ("layer", "role"):
            for group, members in rows.groupby(column, sort=True):
                name = f"{group:.0f}" if column == "layer" else str(group)
                for line in numbers.lines(members.index.to_numpy()):
                    yield {**head, "group_by": column, "group": name, **line}


class _Numbers:
    """The table's numbers as arrays, one column a line of the summary: pandas costs seconds where this costs none."""

    def __init__(self, table: pd.DataFrame) -> None:
        names = [*MEASURES, *POOLED]
        self.names = [*MEASURES, *(f"pooled_{name}" for name in POOLED)]
        self.values = _columns(table, names)
        self.values[:, : len(MEASURES)][table["status"].to_numpy() != "ok"] = math.nan
        self.errors = _columns(table, [f"{name}_error" for name in names])
        self.nulls = _columns(table, [f"{name}_null" for name in names])
        for name, level in RANDOM_LEVEL.items():
            drawn = self.nulls[:, names.index(name)]
            if np.isnan(drawn).all() and level in table:
                drawn[:] = table[level]
        self.weights = table["numel"].to_numpy(dtype=float)

    def lines(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Return one line for each measure that was taken in these rows."""
        values, weights = self.values[rows], self.weights[rows, None]
        known = ~np.isnan(values)
        nulls = np.where(known, self.nulls[rows], math.nan)
        total = (weights * known).sum(axis=0)
        with np.errstate(invalid="ignore"):  # 0/0: no entries in any of them
            weighted = (weights * np.where(known, values, 0.0)).sum(axis=0) / total
        error = _statistics(np.where(known, self.errors[rows], math.nan))[2]
        columns = dict(zip(("mean", "q25", "median", "q75"), _statistics(values), strict=True))
        columns |= dict(zip(("null_mean", "null_q25", "null_median", "null_q75"), _statistics(nulls), strict=True))
        columns |= {"n": known.sum(axis=0), "weighted_mean": weighted, "error": error}
        taken = np.flatnonzero(known.any(axis=0))
        lines = [{"measure": self.names[i]} | {name: column[i] for name, column in columns.items()} for i in taken]
        return _judged(lines, [_pairs(values[:, i], nulls[:, i]) for i in taken])


def _pairs(values: np.ndarray, nulls: np.ndarray) -> Separation:
    both = ~np.isnan(nulls)
    return compare(values[both], nulls[both])


def _judged(lines: list[dict[str, Any]], found: list[Separation]) -> list[dict[str, Any]]:
    """Add each line's test against its null, adjusted for the number of tests."""
    for line, pair, p_holm in zip(lines, found, holm([pair.p_value for pair in found]), strict=True):
        line |= {"above": pair.above, "below": pair.below, "null_ratio": pair.ratio, "p_value": pair.p_value}
        line |= {"p_holm": p_holm, "verdict": verdict(pair.above, pair.below, p_holm)}
    return lines


def _columns(table: pd.DataFrame, names: list[str]) -> np.ndarray:
    """Return columns side by side as float64, NaN for those the table does not have."""
    return table.reindex(columns=names).to_numpy(dtype=float, copy=True)


def _statistics(values: np.ndarray) -> np.ndarray:
    """Return mean, lower quartile, median and upper quartile of each column over its known entries."""
    found = np.full((4, values.shape[1]), math.nan)
    known = ~np.isnan(values)
    whole, some = known.all(axis=0), known.any(axis=0)
    found[0, whole] = values[:, whole].mean(axis=0)
    found[1:, whole] = np.quantile(values[:, whole], _QUARTILES, axis=0)
    for i in np.flatnonzero(some & ~whole):
        column = values[known[:, i], i]
        found[:, i] = [column.mean(), *np.quantile(column, _QUARTILES)]
    return found
