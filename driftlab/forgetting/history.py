"""One run's scores as a matrix: which task scored what at which checkpoint, and which stage made it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from driftlab.errors import UsageError
from driftlab.forgetting.intervals import Cell
from driftlab.forgetting.scores import BASE, Scores

IN_DOMAIN, BEFORE, NOT_YET, OOD = "in-domain", "trained-before", "not-yet", "ood"


@dataclass(frozen=True)
class History:
    """The scores of one run.

    Attributes
    ----------
    run, method : str
    seed : float or None
    labels : list of str
        Evaluated checkpoints in order, the base first if it was evaluated.
    stage_of : mapping of str to str
        Stage of each label, empty for the base.
    plan : list of (stage, label of its end)
    own : mapping of str to list of str
        The evaluation tasks of each stage's own domain.
    tasks : list of str
    cells : mapping of (label, task) to Cell
        The scores that are there.
    missing : mapping of (label, task) to str
        Why others are not.
    lower : set of str
        Tasks where less is better.
    raw : set of str
        Tasks without a best score: in no mean with percents.
    """

    run: str
    method: str
    seed: float | None
    labels: list[str]
    stage_of: Mapping[str, str]
    plan: list[tuple[str, str]]
    own: Mapping[str, list[str]]
    tasks: list[str]
    cells: Mapping[tuple[str, str], Cell]
    missing: Mapping[tuple[str, str], str]
    lower: set[str] = field(default_factory=set)
    raw: set[str] = field(default_factory=set)

    @property
    def base(self) -> str:
        """Label of the base, also where it was not evaluated."""
        return next((label for label in self.labels if label.lower() == BASE), BASE)

    @property
    def ends(self) -> list[str]:
        """Labels of the ends of the stages, up to the last one that was evaluated."""
        labels = [label for _, label in self.plan]
        reached = [i for i, label in enumerate(labels) if label in self.labels]
        return labels[: reached[-1] + 1] if reached else []

    @property
    def trained(self) -> list[tuple[int, str]]:
        """Stage number, from 0, and task for every task that a stage of the plan trains."""
        return [(i, task) for i, (stage, _) in enumerate(self.plan) for task in self.own.get(stage, [])]

    @property
    def ood(self) -> list[str]:
        """Tasks that no stage of the plan trains."""
        trained = {task for _, task in self.trained}
        return [task for task in self.tasks if task not in trained]

    def stage_index(self, label: str) -> int:
        """Return the number of the stage a checkpoint is in, from 1; 0 for the base."""
        stages = [stage for stage, _ in self.plan]
        stage = self.stage_of.get(label, "")
        return stages.index(stage) + 1 if stage in stages else 0

    def kind(self, label: str, task: str) -> str:
        """Return how a task stands to what was trained up to a checkpoint."""
        stages = [i for i, name in self.trained if name == task]
        if not stages:
            return OOD
        here = self.stage_index(label) - 1
        if here in stages:
            return IN_DOMAIN
        return BEFORE if any(stage < here for stage in stages) else NOT_YET

    def absent(self, label: str, task: str) -> str:
        """Say why there is no score."""
        return self.missing.get((label, task)) or f"{task} was not evaluated at {label or 'the end of its stage'}"


def histories(scores: Scores, own: Mapping[str, Sequence[str]] | None = None) -> list[History]:
    """Return the history of every run.

    Parameters
    ----------
    scores : Scores
        Gathered.
    own : mapping of str to sequence of str, optional
        Evaluation tasks of a stage's own domain; by default the task that bears the stage's name, in either case.

    Raises
    ------
    UsageError
        If it names a stage or a task that is not there.
    """
    table = scores.table
    tasks = list(dict.fromkeys(table["task"]))
    stages = {stage for plan in scores.plans.values() for stage, _ in plan}
    for stage, names in (own or {}).items():
        if stage not in stages:
            raise UsageError(f"--train-task {stage}=…: expected a stage, one of {', '.join(sorted(stages)) or 'none'}.")
        for name in names:
            if name not in tasks:
                raise UsageError(f"--train-task {stage}={name}: expected a task, one of {', '.join(sorted(tasks))}.")
    same = {stage: [task for task in tasks if task.lower() == stage.lower()] for stage in stages}
    chosen = same | {stage: list(names) for stage, names in (own or {}).items()}
    return [_history(str(run), rows, scores, chosen, tasks) for run, rows in table.groupby("run", sort=False)]


def _history(run: str, rows: pd.DataFrame, scores: Scores, own: Mapping[str, list[str]], tasks: list[str]) -> History:
    rows = rows.sort_values("order", kind="stable")
    cells, missing = {}, {}
    for row in rows.to_dict("records"):
        where = (row["label"], row["task"])
        if row["status"] != "ok" or pd.isna(row["score"]):
            missing[where] = f"{row['task']} at {row['label']}: {row['reason'] or 'no score'}"
            continue
        cells[where] = Cell(
            row["score"],
            None if pd.isna(row["stderr"]) else row["stderr"],
            None if pd.isna(row["n"]) else int(row["n"]),
            scores.rewards.get((run, *where)),
            100.0 if row["scale"] == "percent" else None,
        )
    seed = rows["seed"].iloc[0]
    return History(
        run,
        rows["method"].iloc[0],
        None if pd.isna(seed) else float(seed),
        list(dict.fromkeys(rows["label"])),
        dict(zip(rows["label"], rows["stage"], strict=True)),
        list(scores.plans.get(run, [])),
        own,
        tasks,
        cells,
        missing,
        set(rows.loc[rows["better"] == "lower", "task"]),
        set(rows.loc[rows["scale"] == "raw", "task"]),
    )
