"""The order of training of checkpoints that were never all there at one time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from driftlab.checkpoints.names import natural_key


@dataclass(frozen=True)
class Entry:
    """What the name of a checkpoint tells about its place: see :class:`driftlab.checkpoints.stepname.Found`."""

    run: str
    label: str
    stage: str
    step: int | None
    position: int | None

    @property
    def key(self) -> tuple[str, str]:
        """Run and label."""
        return self.run, self.label


def in_training_order(known: Sequence[Entry], present: Sequence[Entry]) -> list[tuple[str, str]]:
    """Order checkpoints that were seen, some of them gone by now, with those that lie there.

    Stages stand in the order of those present; a stage that is gone altogether came before them. Within a stage steps
    count, wherever a checkpoint appeared late or has been deleted.

    Parameters
    ----------
    known : sequence of Entry
        All that have been measured.
    present : sequence of Entry
        All that lie there now, in order.

    Returns
    -------
    list of (run, label)
        Run after run.

    Examples
    --------
    >>> gone, late = Entry("r", "train@100", "train", 100, None), Entry("r", "train@200", "train", 200, None)
    >>> in_training_order([gone, Entry("r", "train@300", "train", 300, None)], [late])
    [('r', 'train@100'), ('r', 'train@200'), ('r', 'train@300')]
    """
    entries = {entry.key: entry for entry in [*present, *known]}
    runs = list(dict.fromkeys(entry.run for entry in [*present, *known]))
    order = []
    for run in runs:
        mine = [entry for entry in entries.values() if entry.run == run]
        here = list(dict.fromkeys(entry.stage for entry in present if entry.run == run))
        stages = [stage for stage in dict.fromkeys(e.stage for e in known if e.run == run) if stage not in here] + here
        counted = all(entry.position is not None for entry in mine)

        def place(
            entry: Entry, stages: list[str] = stages, counted: bool = counted
        ) -> tuple[float, float, tuple[tuple[int, int, str], ...]]:
            number = entry.position if entry.position is not None else entry.step
            stage = 0 if counted else stages.index(entry.stage)
            return stage, math.inf if number is None else number, natural_key(entry.label)

        order += [entry.key for entry in sorted(mine, key=place)]
    return order
