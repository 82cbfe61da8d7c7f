"""Options of the command as mappings, and everything that changes a number, for the manifest."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from driftlab.errors import UsageError
from driftlab.forgetting.curve import Distances
from driftlab.forgetting.scores import Scores


def assignments(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` options.

    Raises
    ------
    UsageError
        If one is none, or a name is given twice.

    Examples
    --------
    >>> assignments("--domain", ["math=Math"])
    {'math': 'Math'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{option} {text!r}: expected NAME=VALUE.")
        if name in found:
            raise UsageError(f"{option} {name}: expected it once, found it twice.")
        found[name] = value
    return found


def task_lists(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """Read ``STAGE=TASK[,TASK]`` options.

    Examples
    --------
    >>> task_lists("--train-task", ["math=AIME,Math500"])
    {'math': ['AIME', 'Math500']}
    """
    return {
        stage: [task.strip() for task in tasks.split(",") if task.strip()]
        for stage, tasks in assignments(option, texts).items()
    }


def describe(
    scores: Scores, own: Mapping[str, Sequence[str]], distances: Distances | None, draws: int, seed: int
) -> dict[str, Any]:
    """Return everything that changes a number; a resumed run must have the same."""
    content = pd.util.hash_pandas_object(scores.table.drop(columns="source").astype(str), index=False)
    return {
        "scores": hashlib.sha256(content.to_numpy().tobytes()).hexdigest(),
        "rewards": _digest(sorted((key, sorted(values.items())) for key, values in scores.rewards.items())),
        "train_task": {stage: list(tasks) for stage, tasks in own.items()},
        "distances": None if distances is None else _digest(sorted((sorted(k), v) for k, v in distances.pairs.items())),
        "domain": None if distances is None else dict(distances.names),
        "draws": draws,
        "seed": seed,
    }


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()
