"""A base and the checkpoints after it, of one run or several, opened by their headers alone."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from driftlab.checkpoints.arguments import find_runs
from driftlab.checkpoints.hub import find_on_hub, is_hub_name
from driftlab.checkpoints.layout import FoundRun
from driftlab.checkpoints.names import natural_key, pair
from driftlab.checkpoints.remote import AnyPath, located
from driftlab.checkpoints.stepname import Found, describe
from driftlab.checkpoints.tracks import Checkpoint, Member, Run, Track, left_out, member, tie
from driftlab.checkpoints.weights import open_weights
from driftlab.errors import CheckpointError, UsageError


class CheckpointSequence:
    """A base checkpoint and one or more runs that started from it.

    Build it with :meth:`open`, which reads headers only.

    Attributes
    ----------
    base : Checkpoint
        The start of every run.
    runs : list of Run
        The runs, in the order given.
    notes : list of str
        Facts about how the sequence was put together that change what is measured.
    """

    def __init__(self, base: Checkpoint, runs: list[Run], notes: list[str]) -> None:
        self.base = base
        self.runs = runs
        self.notes = notes

    @classmethod
    def open(cls, runs: list[str] | list[Path], base: str | Path | None = None, every: int = 1) -> "CheckpointSequence":
        """Open runs by path.

        Parameters
        ----------
        runs : list of str or Path
            Run folders, globs, or checkpoints in order, each with an optional ``NAME=`` before it; see
            :func:`driftlab.checkpoints.arguments.find_runs`.
        base : str or Path, optional
            The checkpoint the runs started from. By default the base a run folder names, else the first
            checkpoint of a single run.
        every : int, default 1
            Take every n-th checkpoint; the last one is always taken.

        Raises
        ------
        UsageError
            If no base is known, or nothing is left to compare with it.
        CheckpointError
            If the base cannot be read, or no checkpoint can.
        """
        if every < 1:
            raise UsageError(f"--every: expected a number of at least 1, found {every}.")
        found = find_runs([str(run) for run in runs])
        start, found, notes = _split_base(found, base)
        origin = Checkpoint(start.path, "base", "", 0, 0, open_weights(start.path))
        opened = [_open_run(run, origin, every) for run in found]
        opened = [run for run in opened if run.checkpoints]
        everything = [c for run in opened for c in run.checkpoints]
        if not everything:
            raise UsageError(f"{start.path}: nothing to compare with this base.", "Give at least one more checkpoint.")
        if all(c.error for c in everything):
            count = f"None of {len(everything)} checkpoints can be compared; the first: " if everything[1:] else ""
            raise CheckpointError(count + everything[0].error)
        notes += _weights_notes([origin, *everything])
        return cls(origin, opened, notes)

    @property
    def checkpoints(self) -> list[tuple[str, Checkpoint]]:
        """Every (run name, checkpoint), in order."""
        return [(run.name, checkpoint) for run in self.runs for checkpoint in run.checkpoints]

    def tracks(self, include: list[str] | None = None, exclude: list[str] | None = None) -> list[Track]:
        """Return one track for each tensor, base order first, then those only checkpoints have.

        Parameters
        ----------
        include, exclude : list of str, optional
            Regular expressions searched in the name. A name that ``include`` matches is measured even where it
            would be left out by default (embeddings, the output head).

        Raises
        ------
        UsageError
            If an expression is invalid, or nothing is left.
        """
        wanted, unwanted = _compile("--include", include), _compile("--exclude", exclude)
        tracks = list(self._tracks(wanted, unwanted))
        if all(track.excluded for track in tracks):
            raise UsageError(
                f"--include/--exclude leave none of {len(tracks)} tensors; names look like {tracks[0].name!r}.",
                "`driftlab ls` prints them all.",
            )
        return tracks

    def _tracks(self, include: list[re.Pattern[str]], exclude: list[re.Pattern[str]]) -> Iterator[Track]:
        assert self.base.weights is not None
        for name, info in self.base.weights.tensors.items():
            named = any(pattern.search(name) for pattern in include)
            excluded = bool(include and not named) or any(pattern.search(name) for pattern in exclude)
            members = [member(run, checkpoint, name, self.base, named) for run, checkpoint in self.checkpoints]
            yield Track(name, info, members, left_out(name, info, named), excluded)
        added: dict[str, list[Member]] = {}
        for run, checkpoint in self.checkpoints:
            if checkpoint.weights and not checkpoint.error:
                known = set(checkpoint.names.values())
                for name, info in checkpoint.weights.tensors.items():
                    if name not in known:
                        reason = "not in the base" + tie(name, self.base)
                        added.setdefault(name, []).append(Member(run, checkpoint, info, "skipped", reason))
        for name in sorted(added, key=natural_key):
            yield Track(name, None, added[name], "not in the base")


def _split_base(found: list[FoundRun], base: str | Path | None) -> tuple[Found, list[FoundRun], list[str]]:
    """Return the base, the runs without it, and what to say about the choice."""
    if base is not None and is_hub_name(str(base)):
        revisions = find_on_hub(str(base))[1]
        if len(revisions) > 1:
            raise UsageError(f"--base {base}: expected one revision, found {len(revisions)}.")
        return revisions[0], found, []
    if base is not None:
        return describe(located(str(base))), found, []
    for run in found:
        if run.base is not None:
            return run.base, found, []
    lost = next((run for run in found if run.base_named), None)
    if lost is not None:
        raise UsageError(
            f"Run {lost.name}: its run.json names the base {lost.base_named!r}, which is not on this machine.",
            "Give the model the run started from with --base PATH.",
        )
    if len(found) == 1 and len(found[0].checkpoints) > 1:
        first, *rest = found[0].checkpoints
        note = f"no base was given: drift is counted from the first checkpoint, {first.label}"
        return first, [replace(found[0], checkpoints=tuple(rest))], [note]
    names = ", ".join(run.name for run in found[:3])
    raise UsageError(f"No base is known for {names}.", "Give the model the runs started from with --base PATH.")


def _open_run(run: FoundRun, origin: Checkpoint, every: int) -> Run:
    last = len(run.checkpoints)
    kept = [(i, c) for i, c in enumerate(run.checkpoints, 1) if i % every == 0 or i == last]
    numbered = [(i, c) for i, c in kept if not _same(c.path, origin.path)]
    if run.base is not None and not _same(run.base.path, origin.path):
        numbered.insert(0, (0, run.base))
    return Run(run.name, [_open_checkpoint(c, order, origin) for order, c in numbered], list(run.ignored))


def _weights_notes(checkpoints: list[Checkpoint]) -> list[str]:
    """Gather what the choice of files left to say, once for all folders that say the same."""
    labels: dict[str, list[str]] = {}
    for checkpoint in checkpoints:
        for note in checkpoint.weights.notes if checkpoint.weights else []:
            labels.setdefault(note, []).append(checkpoint.label)
    return [f"{', '.join(found[:3])}{', ...' if found[3:] else ''}: {note}" for note, found in labels.items()]


def _open_checkpoint(found: Found, order: int, origin: Checkpoint) -> Checkpoint:
    assert origin.weights is not None
    weights, names, error = None, {}, ""
    try:
        weights = open_weights(found.path, origin.weights)
        names = pair(origin.weights.tensors, weights.tensors, str(found.path))
    except CheckpointError as problem:
        error = str(problem)
    label = "base" if order == 0 else found.label
    return Checkpoint(found.path, label, found.stage, found.step, order, weights, names, error)


def _same(left: AnyPath, right: AnyPath) -> bool:
    return left.resolve() == right.resolve()


def _compile(option: str, expressions: list[str] | None) -> list[re.Pattern[str]]:
    compiled = []
    for expression in expressions or []:
        try:
            compiled.append(re.compile(expression))
        except re.error as error:
            raise UsageError(f"{option} {expression!r}: not a regular expression ({error}).") from None
    return compiled
