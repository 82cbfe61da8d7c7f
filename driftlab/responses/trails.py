"""The runs whose policies are measured: base, checkpoints in order, and what their folder says about them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from driftlab.checkpoints import CheckpointSequence
from driftlab.checkpoints.remote import AnyPath, RemotePath
from driftlab.checkpoints.stepname import describe
from driftlab.errors import CheckpointError, DriftlabError, UsageError
from driftlab.runlog import RunLog, read_runs


@dataclass(frozen=True)
class Stop:
    """One checkpoint on a trail; ``error`` says why it cannot be read."""

    label: str
    stage: str
    order: int | None
    global_step: int | None
    path: Path | None
    digest: str | None = None
    error: str = ""


@dataclass(frozen=True)
class Trail:
    """One run: its base as stop 0 and the checkpoints after it; ``log`` is None for folders of other trainers."""

    name: str
    method: str
    seed: int | None
    stops: list[Stop]
    log: RunLog | None = None
    notes: list[str] = field(default_factory=list)


def open_trails(arguments: Sequence[str], base: Path | None = None, every: int = 1) -> list[Trail]:
    """Open run folders of ``driftlab train``, each with its own base; anything else is one sequence with ``base``.

    Raises
    ------
    UsageError
        If nothing was given, or no base is known.
    CheckpointError
        If a run holds no checkpoint that can be read.
    """
    own: list[str] = []
    foreign: list[str] = []
    for argument in arguments:
        (own if _is_own(argument) else foreign).append(argument)
    if not arguments:
        raise UsageError("No run was given.", "Give run folders, or checkpoints in order with --base.")
    trails = [_own(log, base, every) for log in read_runs(own)] if own else []
    if foreign:
        trails += _foreign(foreign, base, every)
    return trails


def text_trails(arguments: Sequence[str]) -> list[Trail]:
    """Open runs for their stored responses alone: no weights are needed, and where there are none order is unknown."""
    return [_texts(log) for log in read_runs(arguments)]


def _is_own(argument: str) -> bool:
    try:
        return bool(read_runs([argument]))
    except DriftlabError:
        return False


def _own(log: RunLog, base: Path | None, every: int) -> Trail:
    sequence = CheckpointSequence.open([str(log.path)], base, every)
    stops = _stops(sequence)
    return Trail(log.name, log.method, log.seed, stops, log, list(sequence.notes))


def _stops(sequence: CheckpointSequence, run: int = 0) -> list[Stop]:
    origin = sequence.base
    stops = [Stop("base", "base", 0, 0, _here(origin.path), origin.digest)]
    for found in sequence.runs[run].checkpoints:
        path, position = _here(found.path), describe(found.path).position
        stops.append(Stop(found.label, found.stage, found.order, position, path, found.digest, found.error))
    return stops


def _here(path: AnyPath) -> Path:
    if isinstance(path, RemotePath):
        raise UsageError(
            f"{path}: expected a model on this machine, which can be run, found an address.",
            "Copy it here, or give hf:org/name@revision.",
        )
    return path


def _foreign(arguments: list[str], base: Path | None, every: int) -> list[Trail]:
    sequence = CheckpointSequence.open(arguments, base, every)
    return [
        Trail(run.name, run.name, None, _stops(sequence, place), None, list(sequence.notes))
        for place, run in enumerate(sequence.runs)
    ]


def _texts(log: RunLog) -> Trail:
    known: dict[str, Stop] = {}
    with suppress(CheckpointError, UsageError):
        known = {stop.label: stop for stop in _own(log, None, 1).stops}
    scores = {str(row["label"]): row for row in log.scores.to_dict("records")} if "label" in log.scores else {}
    stops = []
    for label in log.responses:
        told = scores.get(label)
        step = None if told is None else int(told["global_step"])
        stage = label.partition("@")[0] if told is None else str(told["stage"])
        at_start = Stop(label, "base", 0, 0, None) if label == "base" else Stop(label, stage, None, step, None)
        stops.append(known.get(label, at_start))
    return Trail(log.name, log.method, log.seed, stops, log)
