"""Threads that work side by side on small pieces, and one worker with all cores on large ones."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
_SMALL = 1 << 22  # entries; beyond it a matrix product keeps all cores busy by itself


class Crew:
    """Runs the jobs of one matrix after the other.

    The many small steps of a small matrix do not divide among cores; whole checkpoints do, one a core. A large
    matrix, and any matrix on a GPU, is measured alone, its products divided among all cores.

    Parameters
    ----------
    device : torch.device
        Where the jobs compute.
    """

    def __init__(self, device: torch.device) -> None:
        self.cores = torch.get_num_threads()
        self.size = self.cores if device.type == "cpu" else 1

    def __enter__(self) -> "Crew":
        self._pool = ThreadPoolExecutor(self.size, initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self.cores)

    def run(self, jobs: Iterator[Callable[[], T]], numel: int) -> Iterator[T]:
        """Yield the jobs' results in order; of a small matrix as many are under way as there are cores."""
        if self.size == 1 or numel > _SMALL:
            yield from (job() for job in jobs)
            return
        torch.set_num_threads(1)
        waiting: deque[Future[T]] = deque()
        for job in jobs:
            waiting.append(self._pool.submit(job))
            if len(waiting) > self.size:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        torch.set_num_threads(self.cores)
