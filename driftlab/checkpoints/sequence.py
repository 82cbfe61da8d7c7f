"""A base and the checkpoints after it, of one run or several, opened by their headers alone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from driftlab.checkpoints.layout import Found, FoundRun, describe, find_runs
from driftlab.checkpoints.names import is_embedding, is_head, natural_key, pair
from driftlab.checkpoints.tensorfile import WEIGHT_DTYPES, TensorInfo
from driftlab.checkpoints.weights import Weights, open_weights
from driftlab.errors import CheckpointError, UsageError


@dataclass(frozen=True)
class Checkpoint:
    """One saved model of a run.

    Attributes
    ----------
    path : Path
        Where it lies, as found.
    label, stage : str
        ``math@50`` and ``math``.
    step : int or None
        Step within the stage.
    order : int
        Position in its run, 1 for the first after the base; 0 for a run's own base.
    weights : Weights or None
        Its tensors; None where it cannot be read.
    names : dict of str to str
        Base tensor name to the name in this checkpoint, for the pairs.
    error : str
        Why it cannot be read or compared; empty where it can.
    """

    path: Path
    label: str
    stage: str
    step: int | None
    order: int
    weights: Weights | None
    names: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def digest(self) -> str | None:
        """Digest of the headers."""
        return self.weights.digest if self.weights else None


@dataclass(frozen=True)
class Run:
    """One training run: a name and its checkpoints in order."""

    name: str
    checkpoints: list[Checkpoint]
    ignored: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Member:
    """One checkpoint's share in a track: its tensor, or the reason why there is none to compare."""

    run: str
    checkpoint: Checkpoint
    tensor: TensorInfo | None
    status: str = "ok"
    reason: str = ""


@dataclass(frozen=True)
class Track:
    """One tensor of the base through all checkpoints of all runs.

    Attributes
    ----------
    name : str
        The base's name of it.
    base : TensorInfo or None
        None for a tensor that only checkpoints have.
    members : list of Member
        One for each checkpoint of each run, in order.
    left_out : str
        Why the spectral measures do not apply to it; empty where they do.
    excluded : bool
        Whether the user asked to leave it out altogether.
    """

    name: str
    base: TensorInfo | None
    members: list[Member]
    left_out: str = ""
    excluded: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes to read for the whole track."""
        return sum(t.nbytes for t in (self.base, *(m.tensor for m in self.members)) if t is not None)


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
            :func:`driftlab.checkpoints.layout.find_runs`.
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
        start, found = _split_base(found, Path(base) if base is not None else None)
        weights = open_weights(start.path)
        origin = Checkpoint(start.path, "base", "", 0, 0, weights)
        notes = list(weights.notes)
        opened = [_open_run(run, origin, every) for run in found]
        opened = [run for run in opened if run.checkpoints]
        everything = [c for run in opened for c in run.checkpoints]
        if not everything:
            raise UsageError(f"{start.path}: nothing to compare with this base.", "Give at least one more checkpoint.")
        if all(c.error for c in everything):
            raise CheckpointError(everything[0].error)
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
            members = [self._member(run, checkpoint, name, info) for run, checkpoint in self.checkpoints]
            yield Track(name, info, members, left_out(name, info, named), excluded)
        added: dict[str, list[Member]] = {}
        for run, checkpoint in self.checkpoints:
            if checkpoint.weights and not checkpoint.error:
                known = set(checkpoint.names.values())
                for name, info in checkpoint.weights.tensors.items():
                    if name not in known:
                        reason = "not in the base" + (" (tied to the embedding there)" if is_head(name) else "")
                        added.setdefault(name, []).append(Member(run, checkpoint, info, "skipped", reason))
        for name in sorted(added, key=natural_key):
            yield Track(name, None, added[name], "not in the base")

    def _member(self, run: str, checkpoint: Checkpoint, name: str, base: TensorInfo) -> Member:
        if checkpoint.error or checkpoint.weights is None:
            return Member(run, checkpoint, None, "failed", checkpoint.error)
        tensor = checkpoint.weights.tensors.get(checkpoint.names.get(name, ""))
        if tensor is None:
            tied = is_head(name) and checkpoint.weights.tied
            reason = "not stored in this checkpoint" + (": tied to the embedding" if tied else "")
            return Member(run, checkpoint, None, "skipped", reason)
        if tensor.dtype not in WEIGHT_DTYPES and base.dtype in WEIGHT_DTYPES:
            return Member(run, checkpoint, tensor, "skipped", unscaled(tensor.dtype))
        if tensor.shape != base.shape:
            reason = f"shape {_shape(base)} in the base, {_shape(tensor)} here"
            return Member(run, checkpoint, tensor, "skipped", reason)
        return Member(run, checkpoint, tensor)


def left_out(name: str, info: TensorInfo, named: bool = False) -> str:
    """Return why the spectral measures leave a tensor out, or an empty string.

    Spectral measures take two-dimensional linear weights. Embeddings and the output head are left out unless the
    user names them; vectors, scalars, stacks and packed integers always are.
    """
    if info.dtype not in WEIGHT_DTYPES:
        return unscaled(info.dtype)
    if info.numel == 0:
        return "empty tensor"
    if len(info.shape) != 2:
        return f"{len(info.shape)}-dimensional: spectral measures take matrices"
    if named:
        return ""
    if is_embedding(name):
        return "embedding: left out of the spectral measures by default"
    if is_head(name):
        return "output head: left out of the spectral measures by default"
    return ""


def unscaled(dtype: str) -> str:
    """Return why a stored type is not compared."""
    if dtype.startswith("F"):
        return f"stored as {dtype}: its values are no weights without their scales; dequantise the checkpoint first"
    return f"stored as {dtype}: not a floating-point weight"


def _split_base(found: list[FoundRun], base: Path | None) -> tuple[Found, list[FoundRun]]:
    if base is not None:
        own = describe(base)
        return own, found
    for run in found:
        if run.base is not None:
            return run.base, found
    if len(found) == 1 and len(found[0].checkpoints) > 1:
        run = found[0]
        return run.checkpoints[0], [FoundRun(run.name, run.checkpoints[1:], None, run.ignored)]
    raise UsageError(
        f"No base is known for {len(found)} run(s) ({', '.join(run.name for run in found[:3])}).",
        "Give the model the runs started from with --base PATH.",
    )


def _open_run(run: FoundRun, origin: Checkpoint, every: int) -> Run:
    checkpoints = list(run.checkpoints)
    kept = [c for i, c in enumerate(checkpoints, 1) if i % every == 0 or i == len(checkpoints)]
    numbered = [(checkpoints.index(c) + 1, c) for c in kept if not _same(c.path, origin.path)]
    if run.base is not None and not _same(run.base.path, origin.path):
        numbered.insert(0, (0, run.base))
    return Run(run.name, [_open_checkpoint(c, order, origin) for order, c in numbered], list(run.ignored))


def _open_checkpoint(found: Found, order: int, origin: Checkpoint) -> Checkpoint:
    assert origin.weights is not None
    weights, names, error = None, {}, ""
    try:
        weights = open_weights(found.path)
        names = pair(origin.weights.tensors, weights.tensors, str(found.path))
    except CheckpointError as problem:
        error = str(problem)
    label = "base" if order == 0 else found.label
    return Checkpoint(found.path, label, found.stage, found.step, order, weights, names, error)


def _same(left: Path, right: Path) -> bool:
    return left.resolve() == right.resolve()


def _shape(info: TensorInfo) -> str:
    return "x".join(map(str, info.shape))


def _compile(option: str, expressions: list[str] | None) -> list[re.Pattern[str]]:
    compiled = []
    for expression in expressions or []:
        try:
            compiled.append(re.compile(expression))
        except re.error as error:
            raise UsageError(f"{option} {expression!r}: not a regular expression ({error}).") from None
    return compiled
