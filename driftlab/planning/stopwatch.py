"""A stopwatch for work on a machine that others use too."""

import statistics
import time
from collections.abc import Callable

import torch


class Stopwatch:
    """Times work a few times over; one thread of the CPU by the time that it was given, everything else by the clock.

    A thread that waits its turn costs others' time, not its own: what one thread was given varies less with other
    users than the clock, and both together tell how crowded the machine is.

    Parameters
    ----------
    device : torch.device
        Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_cpu = device.type == "cpu" and torch.get_num_threads() == 1
        self._wall = self._cpu = 0.0

    @property
    def crowding(self) -> float:
        """Time by the clock over time given, of all that was timed, at least 1; 1 where only the clock was read."""
        return max(1.0, self._wall / self._cpu) if self._by_cpu and self._cpu else 1.0

    def seconds(self, work: Callable[[], object], repeat: int = 3, least: float = 0.02) -> float:
        """Return the median of ``repeat`` timings, each of as many rounds as fill ``least`` seconds."""
        rounds = 1
        times: list[float] = []
        while len(times) < repeat:
            wall, cpu = self._time(work, rounds)
            if wall < least:
                rounds *= 4
                continue
            self._wall, self._cpu = self._wall + wall, self._cpu + cpu
            times.append((cpu if self._by_cpu else wall) / rounds)
        return statistics.median(times)

    def _time(self, work: Callable[[], object], rounds: int) -> tuple[float, float]:
        self._wait()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            work()
        self._wait()
        return time.perf_counter() - wall, time.process_time() - cpu

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
