"""A run watched from outside: each checkpoint measured once, as soon as it lies there whole.

Nothing is asked of the trainer. A checkpoint is taken when its headers agree with the bytes of its files (index and
shards complete) and those files have not changed from one look to the next; it is dropped again if they change while
they are measured.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from driftlab.checkpoints.arguments import find_runs
from driftlab.checkpoints.hub import find_on_hub, is_hub_name
from driftlab.checkpoints.layout import FoundRun
from driftlab.checkpoints.names import pair
from driftlab.checkpoints.remote import AnyPath, located
from driftlab.checkpoints.sequence import CheckpointSequence
from driftlab.checkpoints.signature import Signature, current, rough, signature
from driftlab.checkpoints.stepname import Found, describe
from driftlab.checkpoints.tracks import Checkpoint, Run
from driftlab.checkpoints.weights import Weights, open_weights
from driftlab.errors import CheckpointError, ResultsError, UsageError
from driftlab.live.alarms import exceeded, numbers
from driftlab.live.growing import Key, add_rows, keys, stored
from driftlab.live.walks import Walker
from driftlab.results import ResultsDir
from driftlab.spectral.measures import Plan
from driftlab.watching.order import Entry, in_training_order

RECORD = "watch"


@dataclass(frozen=True)
class Remark:
    """Something the user should know; no checkpoint was measured."""

    text: str


@dataclass(frozen=True)
class Measured:
    """One checkpoint, measured and stored.

    Attributes
    ----------
    run, label : str
    values : dict of str to float
        See :func:`driftlab.live.alarms.numbers`.
    alarms : list of str
        A sentence for each limit exceeded.
    """

    run: str
    label: str
    values: dict[str, float]
    alarms: list[str] = field(default_factory=list)


Event = Remark | Measured


class Watcher:
    """Looks at runs and measures what is new in them.

    Parameters
    ----------
    runs : list of str
        As for ``driftlab svd``; a path may come into being later.
    base : Path or None
        The model the runs started from; by default the base a run folder holds or names.
    plan : Plan
        Which measures.
    results : ResultsDir
        Where the tables grow. Checkpoints that have rows there are not measured again.
    limits : dict of str to float
        For the alarms, see :mod:`driftlab.live.alarms`.
    include, exclude : list of str, optional
        Regular expressions on tensor names.
    device : str
        Where to compute.
    quiet : float
        Seconds after which files that have not been written to are taken as they are at first sight.

    Attributes
    ----------
    pending : dict of (run, label) to str
        Checkpoints that lie there and are not measured yet, and why.
    moving : bool
        Whether the last look found files that are being written.
    """

    def __init__(
        self,
        runs: list[str],
        base: Path | None,
        plan: Plan,
        results: ResultsDir,
        *,
        limits: dict[str, float] | None = None,
        include: list[str] | None = None,
        exclude: list[str] | None = None,
        device: str = "auto",
        quiet: float = 10.0,
    ) -> None:
        self.runs = runs
        self.results = results
        self.limits = limits or {}
        self.quiet = quiet
        self.pending: dict[Key, str] = {}
        self.moving = False
        self._given = base
        self._base: Checkpoint | None = None
        self._walker = Walker(plan, include, exclude, device)
        self._before: dict[Key, Signature] = {}
        self._said: set[str] = set()
        self._record = self._resumed()

    def poll(self) -> Iterator[Event]:
        """Look once; yield what is measured, each after it has been stored, and what is new to say.

        Raises
        ------
        UsageError
            If a run names no base and none was given, or no tensor name is left.
        CheckpointError
            If the base cannot be read any more.
        ResultsError
            If results of another base are to be continued.
        """
        self.moving = False
        try:
            found = find_runs(self.runs)
        except CheckpointError as error:  # not there yet, or nothing in it yet
            yield from self._say(f"waiting: {error}")
            return
        if self._base is None:
            self._base = yield from self._open_base(found)
            if self._base is None:
                return
        present = [
            (run.name, entry)
            for run in found
            for entry in run.checkpoints
            if entry.path.resolve() != self._base.path.resolve()
        ]
        for key in [key for key in self.pending if key not in {(run, entry.label) for run, entry in present}]:
            del self.pending[key], self._before[key]
            yield from self._say(f"{key[0]} {key[1]} has vanished before it was measured")
        done = set(keys(stored(self.results)))
        for run, entry in present:
            if (run, entry.label) in done:
                yield from self._check_unchanged(run, entry)
            else:
                yield from self._consider(run, entry, present)

    # -- the base --------------------------------------------------------------------------------------------------

    def _open_base(self, found: Sequence[FoundRun]) -> Generator[Event, None, Checkpoint | None]:
        start = _described(self._given) if self._given is not None else next((r.base for r in found if r.base), None)
        if start is None:
            named = next((run.base_named for run in found if run.base_named), "")
            where = f"its run.json names {named!r}, which is not on this machine" if named else "it holds none"
            raise UsageError(
                f"Run {found[0].name}: expected the base it started from, {where}.", "Give it with --base PATH."
            )
        try:
            weights = open_weights(start.path)
        except CheckpointError as error:
            self.moving = self._changes(("", "base"), rough(start.path))
            yield from self._say(f"waiting for the base: {error}")
            return None
        if not self._settled(("", "base"), signature(weights)):
            return None
        digest = self._record.setdefault("base", weights.digest)
        if digest != weights.digest:
            raise ResultsError(
                f"{self.results.path}: expected the base it was begun with, found another at {start.path}.",
                "Give that base, or --force to begin again.",
            )
        return Checkpoint(start.path, "base", "", 0, 0, weights)

    # -- one checkpoint --------------------------------------------------------------------------------------------

    def _consider(self, run: str, entry: Found, present: list[tuple[str, Found]]) -> Iterator[Event]:
        assert self._base is not None
        key = (run, entry.label)
        try:
            weights = open_weights(entry.path, self._base.weights)
        except (CheckpointError, OSError) as error:
            self.pending[key] = str(error)
            self.moving |= self._changes(key, rough(entry.path))
            yield from self._say(f"waiting for {run} {entry.label}: {error}")
            return
        before = signature(weights)
        if not self._settled(key, before):
            self.pending[key] = "its files are being written, or were until just now"
            return
        names, problem = _paired(self._base, weights, entry.path)
        checkpoint = Checkpoint(entry.path, entry.label, entry.stage, entry.step, 1, weights, names, problem)
        rows = self._walker.rows(CheckpointSequence(self._base, [Run(run, [checkpoint])], []))
        self._require_base()
        if current(entry.path, self._base.weights) != before:
            self.pending[key] = "it changed or vanished while it was measured"
            self._before.pop(key, None)
            yield Remark(f"{run} {entry.label} changed or vanished while it was measured: not counted")
            return
        self._store(run, entry, before, rows, present)
        self.pending.pop(key, None)
        values = numbers(rows)
        for text in sorted({row["reason"] for row in rows if row["status"] == "failed"})[:3]:
            yield Remark(f"{run} {entry.label}: {text}")
        yield Measured(run, entry.label, values, exceeded(values, self.limits))

    def _store(
        self, run: str, entry: Found, files: Signature, rows: list[dict[str, Any]], present: list[tuple[str, Found]]
    ) -> None:
        known = Entry(run, entry.label, entry.stage, entry.step, entry.position)
        self._record["entries"].append(asdict(known) | {"files": [list(file) for file in files]})
        self.results.write_json(RECORD, self._record)  # first: an entry without rows is measured again, not missed
        stored_keys = [*keys(stored(self.results)), (run, entry.label)]
        entries = {(e["run"], e["label"]): Entry(*(e[name] for name in _ENTRY)) for e in self._record["entries"]}
        here = [Entry(name, e.label, e.stage, e.step, e.position) for name, e in present]
        order = in_training_order([entries[key] for key in stored_keys if key in entries], here)
        add_rows(self.results, rows, [key for key in order if key in set(stored_keys)])

    def _check_unchanged(self, run: str, entry: Found) -> Iterator[Event]:
        known = next(e for e in reversed(self._record["entries"]) if (e["run"], e["label"]) == (run, entry.label))
        now = current(entry.path, self._base.weights if self._base else None)
        if now is not None and [list(file) for file in now] != known["files"]:
            yield from self._say(
                f"{run} {entry.label} has been written again since it was measured; its rows are those of before"
            )

    # -- small things ----------------------------------------------------------------------------------------------

    def _resumed(self) -> dict[str, Any]:
        done = stored(self.results)
        if not len(done):
            return {"entries": []}
        record = self.results.read_json(RECORD)
        add_rows(self.results, [])  # a run killed between the two tables left the second one behind
        return record

    def _require_base(self) -> None:
        assert self._base is not None
        assert self._base.weights is not None
        if current(self._base.path) != signature(self._base.weights):
            raise CheckpointError(
                f"{self._base.path}: the base has changed or vanished while the run was watched.",
                "Put it back and give --resume.",
            )

    def _settled(self, key: Key, files: Signature) -> bool:
        """Whether files are as they were at the last look, or have been left alone for long enough."""
        changed = self._changes(key, files)
        old = all(time.time() - written / 1e9 > self.quiet for _, _, written in files)
        self.moving |= changed and not old
        return old or not changed

    def _changes(self, key: Key, files: Signature) -> bool:
        before = self._before.get(key)
        self._before[key] = files
        return before != files

    def _say(self, text: str) -> Iterator[Event]:
        if text not in self._said:
            self._said.add(text)
            yield Remark(text)


def watch(
    watcher: Watcher,
    *,
    poll: float = 10.0,
    until_idle: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Event]:
    """Look again and again.

    Parameters
    ----------
    watcher : Watcher
    poll : float
        Seconds between two looks.
    until_idle : float, optional
        End when nothing was measured and nothing was being written for so many seconds; by default never.
    sleep, clock : callable
        Time, for tests.

    Raises
    ------
    UsageError
        If a time is not above 0.
    """
    for name, seconds in (("--poll", poll), ("--until-idle", until_idle)):
        if seconds is not None and not seconds > 0:
            raise UsageError(f"{name}: expected seconds above 0, found {seconds}.")
    last = clock()
    while True:
        for event in watcher.poll():
            yield event
            if isinstance(event, Measured):
                last = clock()
        if watcher.moving:
            last = clock()
        if until_idle is not None and clock() - last >= until_idle:
            return
        sleep(poll)


_ENTRY = ("run", "label", "stage", "step", "position")


def _described(base: Path) -> Found:
    if not is_hub_name(str(base)):
        return describe(located(base))
    found = find_on_hub(str(base))[1]
    if len(found) > 1:
        raise UsageError(f"--base {base}: expected one revision, found {len(found)}.")
    return found[0]


def _paired(base: Checkpoint, weights: Weights, path: AnyPath) -> tuple[dict[str, str], str]:
    assert base.weights is not None
    try:
        return pair(base.weights.tensors, weights.tensors, str(path)), ""
    except CheckpointError as error:
        return {}, str(error)
