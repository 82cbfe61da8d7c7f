"""From scores to finished tables: gather, compare, summarise, relate to distance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from driftlab.forgetting.changes import change_table
from driftlab.forgetting.curve import Distances, measure_curve
from driftlab.forgetting.history import History, histories
from driftlab.forgetting.quadratic import DRAWS
from driftlab.forgetting.scores import Scores
from driftlab.forgetting.summary import summarise

TABLES = ("scores", "forgetting", "forgetting_summary", "curve")
"""Every table a study may fill."""


@dataclass(frozen=True)
class Study:
    """Tables by name, the content of ``curve.json`` where there are distances, and remarks for the reader."""

    tables: dict[str, pd.DataFrame]
    curve: dict[str, Any] | None
    remarks: list[str] = field(default_factory=list)


def measure_forgetting(
    scores: Scores,
    *,
    own: Mapping[str, Sequence[str]] | None = None,
    distances: Distances | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Study:
    """Measure gain and forgetting, the metrics of continual learning, and the curve against distance.

    Parameters
    ----------
    scores : Scores
        From :func:`driftlab.forgetting.gather.gather`.
    own : mapping of str to sequence of str, optional
        Evaluation tasks of each stage's own domain.
    distances : Distances, optional
        Without it there is no curve.
    draws, seed : int
        Of the bootstrap of the curve.
    """
    runs = histories(scores, own)
    changes = change_table(runs)
    summary, said = summarise(runs)
    remarks = [*scores.remarks, *said, *_remarks(runs, changes)]
    tables = {"scores": scores.table, "forgetting": changes, "forgetting_summary": summary}
    curve = None
    if distances is not None:
        tables["curve"], curve = measure_curve(runs, distances, draws=draws, seed=seed)
        remarks += [f"Curve: {one['points']} points left out, {one['reason']}." for one in curve["left_out"]]
    return Study(tables, curve, remarks)


def _remarks(runs: Sequence[History], changes: pd.DataFrame) -> list[str]:
    found = []
    without: dict[str, list[str]] = {}
    for history in runs:
        for stage, _ in history.plan:
            if not history.own.get(stage):
                without.setdefault(stage, []).append(history.run)
        reached, planned = len(history.ends), len(history.plan)
        if reached < planned:
            found.append(f"{history.run}: the ends of {reached} of its {planned} stages were evaluated.")
    found += [
        f"Stage {stage}: no task bears its name, so none counts as its own (--train-task {stage}=TASK)."
        for stage in without
    ]
    found += _bases(runs)
    counts = changes.loc[changes["status"] != "ok", "reason"].value_counts(sort=False)
    return found + [f"{count} changes have no per cent: {reason}." for reason, count in counts.items()]


def _bases(runs: Sequence[History]) -> list[str]:
    """Name runs of one seed whose bases scored differently: what they gained is not measured from one place."""
    found = []
    first: dict[float | None, History] = {}
    for history in runs:
        other = first.setdefault(history.seed, history)
        here, there = (
            {task: run.cells[run.base, task].score for task in run.tasks if (run.base, task) in run.cells}
            for run in (history, other)
        )
        if any(here[task] != there[task] for task in here.keys() & there.keys()):
            found.append(f"{history.run} started from another base than {other.run}, or it was evaluated differently.")
    return found
