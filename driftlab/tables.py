"""The spectral tables: their columns, and the summary over matrices."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from driftlab.spectral.measures import ESTIMATED, MEASURES

KEYS = ("run", "label", "stage", "step", "order")
NULLED = tuple(name for name, measure in MEASURES.items() if measure.nulls)
POOLED = ("update_density", "update_sparsity")
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
NULL_STATISTICS = ("null_mean", "null_median", "null_q25", "null_q75")
SUMMARY = pa.schema(
    [
        *(SPECTRAL.field(name) for name in KEYS),
        ("group_by", pa.string()),
        ("group", pa.string()),
        ("measure", pa.string()),
        ("n", pa.int64()),
        *((name, pa.float64()) for name in (*STATISTICS, *NULL_STATISTICS)),
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
        of the error estimates) and ``null_mean``, ``null_median``, ``null_q25``, ``null_q75``. The measures
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
    keys = list(KEYS)
    for key, rows in spectral.groupby(keys, sort=False, dropna=False):
        head = dict(zip(keys, key, strict=True))
        for group_by, column in (("model", None), ("layer", "layer"), ("role", "role")):
            groups = rows.groupby(column, sort=True) if column else [("all", rows)]
            for group, members in groups:
                name = f"{group:.0f}" if column == "layer" else str(group)
                for line in _group_rows(members):
                    yield {**head, "group_by": group_by, "group": name, **line}


def _group_rows(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    ok = rows[rows["status"] == "ok"]
    for name in MEASURES:
        if not ok[name].isna().all():
            yield {"measure": name, **_statistics(ok, name)}
    for name in POOLED:
        if not rows[name].isna().all():
            yield {"measure": f"pooled_{name}", **_statistics(rows, name)}


def _statistics(rows: pd.DataFrame, name: str) -> dict[str, Any]:
    known = rows[rows[name].notna()]
    values, weights = known[name].to_numpy(), known["numel"].to_numpy(dtype=float)
    q25, median, q75 = np.quantile(values, [0.25, 0.5, 0.75])
    return {
        "n": len(values),
        "mean": values.mean(),
        "median": median,
        "q25": q25,
        "q75": q75,
        "weighted_mean": float(np.average(values, weights=weights)) if weights.sum() else math.nan,
        "error": _median(known, f"{name}_error"),
        **_null_statistics(known, f"{name}_null"),
    }


def _null_statistics(rows: pd.DataFrame, column: str) -> dict[str, float]:
    values = rows[column].dropna().to_numpy() if column in rows else np.array([])
    if not len(values):
        return dict.fromkeys(NULL_STATISTICS, math.nan)
    q25, median, q75 = np.quantile(values, [0.25, 0.5, 0.75])
    return {"null_mean": values.mean(), "null_median": median, "null_q25": q25, "null_q75": q75}


def _median(rows: pd.DataFrame, column: str) -> float:
    return float(rows[column].median()) if column in rows else math.nan
