"""What an engine is given and what it gives back."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

ATTEMPTS = 3
"""How often a unit is handed out before the loss of its workers is taken to be its own doing."""


@dataclass(frozen=True)
class Unit:
    """One piece of work.

    Attributes
    ----------
    name : str
        Distinct among the units.
    payload : object
        What the worker needs, picklable and small: where to read, not what was read.
    cost : float
        Expected work, in any unit.
    """

    name: str
    payload: Any
    cost: float = 0.0


@dataclass(frozen=True)
class Finished:
    """A unit that is done with: its result, or why it was given up."""

    unit: Unit
    result: Any = None
    error: str = ""


class Labour(Protocol):
    """What workers do, picklable."""

    def start(self, worker: int) -> AbstractContextManager[Any]:
        """Return a context whose value turns a payload into a result; entered once in each worker process."""


class Engine(Protocol):
    """Hands units to workers.

    A worker that is lost (killed, out of memory, its node gone) costs the unit in its hands one attempt; after
    :data:`ATTEMPTS` the unit comes back with an ``error``. An exception of the work itself is raised as it is.

    Attributes
    ----------
    workers : int or None
        Units under way at once; None where the cluster decides.
    threads : int
        Threads of each worker. Products of float64 matrices may depend on it in the last bit, on nothing else.
    """

    workers: int | None
    threads: int

    def run(self, units: Sequence[Unit], labour: Labour) -> Iterator[Finished]:
        """Yield every unit once, in the order in which they are done."""


def heavy_first(units: Iterable[Unit]) -> list[Unit]:
    """Order units so that the last to finish are the light ones.

    The schedule is then at most 4/3 - 1/(3N) times as long as the best one for N equal workers.

    References
    ----------
    R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969.

    Examples
    --------
    >>> [unit.name for unit in heavy_first([Unit("a", None, 1), Unit("b", None, 3), Unit("c", None, 3)])]
    ['b', 'c', 'a']
    """
    return sorted(units, key=lambda unit: -unit.cost)
