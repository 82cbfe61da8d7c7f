"""What a checkpoint gained and lost on a task against an earlier one: per cent, points, questions."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from driftlab.forgetting.history import History
from driftlab.forgetting.intervals import Cell, combine, transitions

COLUMNS = (
    "run",
    "method",
    "seed",
    "stage",
    "stage_index",
    "stage_end",
    "label",
    "order",
    "task",
    "kind",
    "score",
    "base",
    "stderr",
    "points",
    "points_low",
    "points_high",
    "change",
    "change_low",
    "change_high",
    "gain",
    "forgetting",
    "lost_share",
    "gained_share",
    "n_paired",
    "interval",
    "status",
    "reason",
)
"""Columns of the table ``forgetting``."""


def change(before: Cell, after: Cell, *, lower: bool = False) -> dict[str, Any]:
    r"""Compare two scores of one task.

    With a the score now and b the one before, ``points`` is :math:`a - b`, ``change`` is :math:`100 (a - b) / b`,
    ``gain`` is :math:`100 \max(0, (a - b) / b)` and ``forgetting`` is :math:`100 \max(0, (b - a) / b)`. Where less is
    better the signs are turned, so that a gain is always good.

    Parameters
    ----------
    before, after : Cell
    lower : bool, default False
        Less is better.

    Returns
    -------
    dict
        ``points`` with a 95 % interval in the unit of the scores; ``change`` in per cent, its interval that of the
        points over b; ``gain`` and ``forgetting`` in per cent, at least 0; ``lost_share`` and ``gained_share`` of the
        ``n_paired`` questions both answered; ``status`` and ``reason``. Per cents are NaN, with a reason and the
        status ``no base``, where b is 0.

    References
    ----------
    The definition of gain and forgetting is inferred from two plotted points of arXiv 2607.01763 (2026).

    Examples
    --------
    >>> found = change(Cell(32.71), Cell(56.42))
    >>> round(found["gain"], 2), found["forgetting"], round(found["points"], 2)
    (72.49, 0.0, 23.71)
    >>> change(Cell(0.0), Cell(12.0))["reason"]
    'the score before is 0: no per cent of it'
    """
    sign = -1.0 if lower else 1.0
    points = combine([(sign, after), (-sign, before)])
    n_paired, lost, gained = transitions(before, after)
    percent = 100.0 / before.score if before.score > 0 else math.nan
    relative = points.value * percent
    found = {
        "points": points.value,
        "points_low": points.low,
        "points_high": points.high,
        "change": relative,
        "change_low": points.low * percent,
        "change_high": points.high * percent,
        "gain": _positive(relative),
        "forgetting": _positive(-relative),
        "lost_share": lost,
        "gained_share": gained,
        "n_paired": n_paired,
        "interval": points.source,
        "status": "ok",
        "reason": "",
    }
    if before.score <= 0:
        found |= {"status": "no base", "reason": f"the score before is {before.score:g}: no per cent of it"}
    return found


def _positive(value: float) -> float:
    """Return max(0, value) with NaN kept and without a negative zero."""
    return value if math.isnan(value) else max(value, 0.0) + 0.0


def change_table(histories: list[History]) -> pd.DataFrame:
    """Return one row for each run, checkpoint after the base, and task, measured against the base."""
    rows = [row for history in histories for row in _rows(history)]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"n_paired": "Int64", "order": "int64", "stage_index": "int64"})


def _rows(history: History) -> Iterator[dict[str, Any]]:
    ends = set(history.ends)
    start = 0 if history.base in history.labels else 1
    for order, label in enumerate(history.labels, start):
        if label == history.base:
            continue
        for task in history.tasks:
            before, after = history.cells.get((history.base, task)), history.cells.get((label, task))
            row: dict[str, Any] = {
                "run": history.run,
                "method": history.method,
                "seed": history.seed,
                "stage": history.stage_of[label],
                "stage_index": history.stage_index(label),
                "stage_end": label in ends,
                "label": label,
                "order": order,
                "task": task,
                "kind": history.kind(label, task),
                "score": after.score if after else math.nan,
                "base": before.score if before else math.nan,
                "stderr": _stderr(after),
            }
            if before and after:
                yield row | change(before, after, lower=task in history.lower)
            else:
                where = label if after is None else history.base
                yield row | {"status": "missing", "reason": history.absent(where, task)}


def _stderr(cell: Cell | None) -> float:
    """Return the standard error as it was reported, else as the number of questions gives it."""
    if cell is None:
        return math.nan
    return math.sqrt(combine([(1.0, cell)]).variance) if cell.stderr is None else cell.stderr
