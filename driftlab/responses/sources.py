"""Which responses belong together: run folders, folders of dumps and single files, to sequences with a reference."""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from driftlab.errors import DataError, UsageError
from driftlab.responses.readers import ResponseSet, read_responses
from driftlab.runlog import RunLog, is_run, read_runs

BASE = "base"
_DUMP = re.compile(r"(\d+)\.jsonl(\.gz)?$")
_DATED = re.compile(r"(samples_.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?\.jsonl?(\.gz)?$")


@dataclass(frozen=True)
class Answers:
    """The responses at one place of a sequence; ``stage`` and ``step`` come from a label such as ``math@50``."""

    label: str
    order: int
    responses: ResponseSet

    @property
    def stage(self) -> str:
        """Name of the stage; empty where the label has none."""
        return self.label.partition("@")[0] if "@" in self.label else ""

    @property
    def step(self) -> int | None:
        """Step in the stage; None where the label has none."""
        step = self.label.rpartition("@")[2]
        return int(step) if step.isdigit() else None


@dataclass(frozen=True)
class ResponseSequence:
    """The responses of one run in order, and what the first of them are compared with."""

    run: str
    method: str
    seed: int | None
    reference: Answers
    steps: tuple[Answers, ...]

    def compared(self, previous: bool) -> list[tuple[Answers, Answers]]:
        """Return (reference, new) for each step: against the base, or each against the one before it."""
        before = [self.reference, *self.steps[:-1]] if previous else [self.reference] * len(self.steps)
        return list(zip(before, self.steps, strict=True))


@dataclass(frozen=True)
class _Argument:
    name: str
    path: Path
    column: str


def open_sequences(arguments: Sequence[str], base: str = "") -> list[ResponseSequence]:
    """Read everything that a command line names.

    Parameters
    ----------
    arguments : sequence of str
        Run folders or globs of them; ``[NAME=]PATH[::COLUMN]`` for files and folders of responses. Paths of one NAME
        are the steps of one run, in order. Without ``base`` a run folder or a folder of dumps is compared with its own
        first responses, and single files with the first file given.
    base : str, optional
        ``PATH[::COLUMN]`` of the reference of all sequences; a run folder stands for its base responses.

    Raises
    ------
    UsageError
        If nothing is left to compare.
    DataError
        If a path holds no responses.
    """
    given = [_parse(argument) for argument in arguments]
    runs = [one for one in given if _is_runs(one.path)]
    others = [one for one in given if not _is_runs(one.path)]
    reference = Answers(BASE, 0, read_reference(base)) if base else None
    logs = read_runs([f"{one.name}={one.path}" if one.name else one.path for one in runs]) if runs else []
    sequences = [_of_run(log, reference) for log in logs] + _of_files(others, reference)
    names = [one.run for one in sequences]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"Two runs are called {twice[0]!r}: names must differ.", "Give NAME=PATH.")
    if not any(one.steps for one in sequences):
        raise UsageError(
            "Expected responses to compare with the reference, found only the reference.",
            "Give a run folder, or a base file and then others: BASE TUNED...",
        )
    return [one for one in sequences if one.steps]


def read_reference(text: str) -> ResponseSet:
    """Read ``PATH[::COLUMN]``; of a run folder its base responses."""
    one = _parse(text)
    if is_run(one.path):
        return _of_run(read_runs([one.path])[0], None).reference.responses
    return read_responses(_files(one.path), one.column)


def _parse(argument: str) -> _Argument:
    name, equals, rest = argument.partition("=")
    if not equals or "/" in name or Path(argument).exists():
        name, rest = "", argument
    path, _, column = rest.partition("::")
    return _Argument(name.strip(), Path(path.strip()), column.strip())


def _is_runs(path: Path) -> bool:
    if path.exists() or not glob.has_magic(str(path)):
        return is_run(path)
    return any(is_run(Path(found)) for found in glob.glob(str(path)))


def _of_run(log: RunLog, reference: Answers | None) -> ResponseSequence:
    if reference is None and BASE not in log.responses:
        raise DataError(
            f"Run {log.path}: expected responses/{BASE}.jsonl, found {', '.join(log.responses) or 'no responses'}.",
            "Give --base FILE, or train with --evaluate.",
        )
    labels = [label for label in log.responses if label != BASE]
    first = reference or Answers(BASE, 0, read_responses(log.responses[BASE]))
    steps = [Answers(label, place, read_responses(log.responses[label])) for place, label in enumerate(labels, 1)]
    return ResponseSequence(log.name, log.method, log.seed, first, tuple(steps))


def _of_files(given: Sequence[_Argument], reference: Answers | None) -> list[ResponseSequence]:
    """Group files by name; the first single file is the reference of those that have none of their own."""
    sequences: list[ResponseSequence] = []
    named: dict[str, list[_Argument]] = {}
    for one in given:
        dumps = _dumps(one.path)
        if len(dumps) > 1 or (dumps and reference):
            found = [Answers(label, i, read_responses(file, one.column)) for i, (label, file) in enumerate(dumps)]
            start, steps = (reference, found) if reference else (found[0], found[1:])
            name = one.name or one.path.resolve().name
            sequences.append(ResponseSequence(name, name, None, start, tuple(steps)))
        elif reference is None:
            reference = Answers(one.name or _label(one.path), 0, read_responses(_files(one.path), one.column))
        else:
            named.setdefault(one.name or _label(one.path), []).append(one)
    for name, files in named.items():
        assert reference is not None
        steps = [Answers(_label(o.path), i, read_responses(_files(o.path), o.column)) for i, o in enumerate(files, 1)]
        labels = [step.label for step in steps]
        if len(set(labels)) < len(labels):
            raise UsageError(f"Run {name!r}: expected files of different names as its steps, found {labels}.")
        sequences.append(ResponseSequence(name, name, None, reference, tuple(steps)))
    return sequences


def _label(path: Path) -> str:
    return re.sub(r"\.(jsonl?|ndjson|csv|tsv|parquet|arrow)(\.gz)?$", "", path.name)


def _dumps(path: Path) -> list[tuple[str, Path]]:
    """Return step and file of a folder of verl dumps, in the order of steps; empty for anything else."""
    if not path.is_dir():
        return []
    found = {file: _DUMP.match(file.name) for file in path.iterdir() if file.is_file()}
    dumps = sorted((int(match[1]), file) for file, match in found.items() if match)
    return [(str(step), file) for step, file in dumps]


def _files(path: Path) -> Path | list[Path]:
    """Return the newest file of each task of a folder of lm-evaluation-harness samples, else the path itself."""
    if not path.is_dir():
        return path
    newest: dict[str, Path] = {}
    samples = list(path.glob("samples_*.jsonl*")) or list(path.glob("*/samples_*.jsonl*"))
    if len({file.parent for file in samples}) > 1:
        models = ", ".join(sorted({file.parent.name for file in samples}))
        raise DataError(f"Responses {path}: expected the samples of one model, found {models}.", "Name one of them.")
    for file in sorted(samples, key=lambda file: file.name):
        match = _DATED.match(file.name)
        newest[match[1] if match else file.name] = file
    return list(newest.values()) or path
