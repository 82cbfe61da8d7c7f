"""Threads that measure several checkpoints of one small matrix at once.

The many small steps of a small matrix do not divide among cores; whole checkpoints do. A large matrix, and any matrix
on a GPU, is measured alone, its products divided among all cores.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

_ENTRIES = 1 << 21  # under way at once: a job holds about ten float64 copies of its matrix, 170 MB for these
Row = dict[str, Any]


class Crew:
    """A pool of one thread a core, used as a context.

    Parameters
    ----------
    device : torch.device
        On anything but the CPU the crew is the calling thread alone.
    """

    def __init__(self, device: torch.device) -> None:
        self.cores = torch.get_num_threads()
        self.size = self.cores if device.type == "cpu" else 1

    def __enter__(self) -> "Crew":
        self._pool = ThreadPoolExecutor(self.size)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self.cores)

    def run(self, jobs: Iterator[Callable[[], Row]], numel: int) -> Iterator[Row]:
        """Yield the jobs' results in order; as many are under way as threads and memory allow.

        Parameters
        ----------
        jobs : iterator of callable
            Each returns one row.
        numel : int
            Entries of the matrix a job works on.
        """
        hands = min(self.size, _ENTRIES // max(numel, 1))
        if hands <= 1:
            yield from (job() for job in jobs)
            return
        share = max(1, self.cores // hands)
        torch.set_num_threads(share)
        waiting: deque[Future[Row]] = deque()
        for job in jobs:
            waiting.append(self._pool.submit(_with_threads, share, job))
            if len(waiting) >= hands:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        torch.set_num_threads(self.cores)


def _with_threads(count: int, job: Callable[[], Row]) -> Row:
    """Run a job after telling its thread how many cores it has: torch keeps that count for each thread."""
    torch.set_num_threads(count)
    return job()
