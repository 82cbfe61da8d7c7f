"""The one form that all score tables are brought into, whatever they were read from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from driftlab.runlog import SETTINGS

IDENTITY = ("run", "method", "seed", "stage", "step", "label", "order")
EVALUATION = ("temperature", "eval_seed", "shots")
"""Settings of an evaluation; scores made under different ones are told apart in the remarks."""
COLUMNS = (
    *IDENTITY,
    "task",
    "metric",
    "score",
    "stderr",
    "n",
    "scale",
    "scale_read",
    "better",
    *EVALUATION,
    "mean_length",
    "truncated",
    "source",
    "status",
    "reason",
    *SETTINGS,
)
"""Columns of the table ``scores``: one row for each run, checkpoint and task."""
NUMBERS = (
    "seed",
    "step",
    "order",
    "score",
    "stderr",
    "n",
    *EVALUATION,
    "mean_length",
    "truncated",
    "ema_rate",
    "teacher_k",
    "teacher_gamma",
    "kl_weight",
    "lr",
)
BASE = "base"
"""Label of the model that training started from."""


@dataclass(frozen=True)
class Scores:
    """Scores of several runs in the one form.

    Attributes
    ----------
    table : DataFrame
        The columns :data:`COLUMNS`.
    rewards : mapping of (run, label, task) to mapping of str to float
        Reward of each question where the responses are stored, in the unit of the scores of its task.
    plans : mapping of str to list of (stage, label)
        The stages of each run in order, with the label that its last checkpoint has; the label is empty where the
        table cannot say it.
    remarks : list of str
        What a reader of the numbers must know.
    """

    table: pd.DataFrame
    rewards: Mapping[tuple[str, str, str], Mapping[str, float]] = field(default_factory=dict)
    plans: Mapping[str, list[tuple[str, str]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def normal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with all columns of the one form, in their order, numbers as numbers, missing words as ``""``."""
    found = rows.reindex(columns=list(COLUMNS))
    for name in found:
        if name in NUMBERS:
            found[name] = pd.to_numeric(found[name], errors="coerce").astype(float)
        elif name not in SETTINGS:
            found[name] = found[name].astype(object).where(found[name].notna(), "").astype(str)
    for name in ("teacher", "distill_cot", "demo_cot", "style_bias"):
        found[name] = found[name].map(lambda value: None if pd.isna(value) else str(value)).astype(object)
    found["status"] = found["status"].where(found["status"] != "", "ok")
    return found.reset_index(drop=True)


def is_base(table: pd.DataFrame) -> "pd.Series[bool]":
    """Tell which rows belong to the model that training started from."""
    return table["label"].str.lower() == BASE
