"""Scores of the runs that ``driftlab train`` wrote, with the reward of every question."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from driftlab.forgetting.scores import BASE, Scores, normal
from driftlab.runlog import RunLog


def read_run_scores(runs: Sequence[RunLog]) -> Scores:
    """Bring the scores of runs into the one form; they are shares, so they become percents later."""
    tables, remarks = [], []
    rewards: dict[tuple[str, str, str], dict[str, float]] = {}
    plans = {}
    for run in runs:
        plans[run.name] = planned(run)
        if run.dropped:
            remarks.append(f"{run.name}: {run.dropped} lines of its logs could not be read and were left out.")
        if run.scores.empty:
            remarks.append(f"{run.name}: no scores.jsonl with scores, so nothing of it was measured.")
            continue
        tables.append(_rows(run))
        for label, file in run.responses.items():
            found, lost = _rewards(file)
            rewards |= {(run.name, label, task): values for task, values in found.items()}
            if lost:
                remarks.append(f"{run.name} {label}: {lost} responses could not be read and are in no pair.")
    table = pd.concat(tables, ignore_index=True) if tables else normal(pd.DataFrame())
    return Scores(table, rewards, plans, remarks)


def planned(run: RunLog) -> list[tuple[str, str]]:
    """Return the stages a run was to have, each with the label of its end."""
    steps = {
        name: count for name, _, count in (part.strip().rpartition(":") for part in _text(run, "stages").split(","))
    }
    return [(stage, f"{stage}@{steps[stage]}" if steps.get(stage) else "") for stage in run.stages]


def _text(run: RunLog, setting: str) -> str:
    value = run.config.get(setting)
    return value if isinstance(value, str) else ""


def _rows(run: RunLog) -> pd.DataFrame:
    table = run.table("scores")
    table["eval_seed"] = run.scores.get("seed")
    labels = list(dict.fromkeys(table["label"]))
    if "global_step" in table:
        first = table.groupby("label")["global_step"].first()
        labels.sort(key=lambda label: float(first[label]))
    unscored = table["score"].isna()
    table["status"] = unscored.map({True: "missing", False: "ok"})
    table["reason"] = unscored.map({True: "the evaluation gave no score", False: ""})
    table["stage"] = table["stage"].where(table["label"].str.lower() != BASE, "") if "stage" in table else ""
    order = table["label"].map({label: place for place, label in enumerate(labels)})
    return normal(table.assign(order=order, source=str(run.path), scale_read="fraction", metric="success"))


def _rewards(file: Path) -> tuple[dict[str, dict[str, float]], int]:
    """Return the rewards of one checkpoint by task and question, and how many lines hold none.

    A question is its id together with its prompt: the same id under another seed of the evaluation is another
    question, and must not be paired.
    """
    found: dict[str, dict[str, float]] = {}
    lost = 0
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row: dict[str, Any] = json.loads(line)
            if row["reward"] is not None:
                found.setdefault(str(row["task"]), {})[f"{row['id']}\0{row.get('prompt')}"] = float(row["reward"])
        except (ValueError, KeyError, TypeError):
            lost += bool(line.strip())
    return found, lost
