"""What a training run says about itself: method, settings, the log of its steps, its scores and its responses.

Reads the run folder that ``driftlab train`` writes (``run.json``, ``steps.jsonl``, ``scores.jsonl``,
``responses/LABEL.jsonl``); the weights are :mod:`driftlab.checkpoints`' business and need not be there.
"""

import glob
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from driftlab.errors import DataError, UsageError
from driftlab.naming import distinct, is_remote

SETTINGS = (
    "teacher",
    "ema_rate",
    "teacher_k",
    "teacher_gamma",
    "distill_cot",
    "demo_cot",
    "kl_weight",
    "lr",
    "style_bias",
)
"""Settings of a run that figures compare runs by, as columns of :meth:`RunLog.table`."""


@dataclass(frozen=True)
class RunLog:
    """One run as its folder tells it.

    Attributes
    ----------
    name : str
        What tables call the run: the ``NAME=`` it was given with, else its method, made distinct.
    path : Path
        The run folder.
    method : str
        Its training method or preset; runs that differ in their seed alone share it.
    seed : int or None
        Seed of the run.
    config : dict
        Its merged settings.
    stages : list of str
        Its stages, in order.
    steps, scores : DataFrame
        ``steps.jsonl`` and ``scores.jsonl``; empty where there is none.
    responses : dict of str to Path
        Label to the file of responses, in the order of training.
    dropped : int
        Lines of the logs that could not be read, such as the half-written last one of a killed run.
    """

    name: str
    path: Path
    method: str
    seed: int | None
    config: dict[str, Any]
    stages: list[str]
    steps: pd.DataFrame
    scores: pd.DataFrame
    responses: dict[str, Path] = field(default_factory=dict)
    dropped: int = 0

    def table(self, name: str) -> pd.DataFrame:
        """Return ``steps`` or ``scores`` with columns ``run, method, seed`` and :data:`SETTINGS` before the rest."""
        found: pd.DataFrame = getattr(self, name)
        head = {"run": self.name, "method": self.method, "seed": self.seed}
        head |= {setting: self.config.get(setting) for setting in SETTINGS}
        rest = [column for column in found if column not in head]
        return found[rest].assign(**head)[[*head, *rest]]


def read_runs(arguments: Sequence[str | Path]) -> list[RunLog]:
    """Read runs given as folders or globs, each with an optional ``NAME=`` before it.

    Raises
    ------
    UsageError
        If nothing was given.
    DataError
        If an argument is no run folder.
    """
    runs = [run for argument in arguments for run in _expand(str(argument))]
    if not runs:
        raise UsageError("No run was given.", "Give folders that `driftlab train` wrote.")
    names = distinct([run.name for run in runs], [run.path.resolve() for run in runs])
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def is_run(path: Path) -> bool:
    """Whether a folder is one that ``driftlab train`` wrote."""
    return (path / "run.json").is_file()


def read_run(path: str | Path, name: str = "") -> RunLog:
    """Read one run folder.

    Raises
    ------
    DataError
        If there is no ``run.json`` that can be read.
    """
    folder = Path(path)
    if is_remote(path):
        raise DataError(
            f"{path}: expected a run folder on this machine, found an address, from where weights alone are read.",
            "Copy the run here.",
        )
    try:
        meta = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        method, config = str(meta["method"]), dict(meta["config"])
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{folder}: expected a run folder with run.json, found none that can be read.",
            "Give a folder that `driftlab train` wrote.",
        ) from None
    steps, lost = _lines(folder / "steps.jsonl")
    scores, also = _lines(folder / "scores.jsonl")
    stages = [str(stage["name"]) for stage in meta.get("stages") or []]
    labels = list(dict.fromkeys(scores["label"])) if "label" in scores else []
    files = {file.stem: file for file in sorted((folder / "responses").glob("*.jsonl"))}
    responses = {label: files[label] for label in [*labels, *sorted(set(files) - set(labels))] if label in files}
    return RunLog(
        name or method, folder, method, meta.get("seed"), config, stages, steps, scores, responses, lost + also
    )


def _expand(argument: str) -> list[RunLog]:
    name, equals, rest = argument.partition("=")
    if not equals or "/" in name or Path(argument).exists():
        name, rest = "", argument
    if Path(rest).exists() or not glob.has_magic(rest):
        return [read_run(rest, name)]
    found = [Path(path) for path in sorted(glob.glob(rest)) if is_run(Path(path))]
    if not found:
        raise DataError(f"Glob {rest!r}: expected run folders, found none.", "Check the pattern.")
    return [read_run(path, name) for path in found]


def _lines(file: Path) -> tuple[pd.DataFrame, int]:
    """Read JSON Lines, and count those that are none."""
    rows, lost = [], 0
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    for line in text.splitlines():
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            lost += bool(line.strip())
    return pd.DataFrame(rows), lost
