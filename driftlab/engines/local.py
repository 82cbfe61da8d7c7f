"""Worker processes on this machine."""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from driftlab.engines.base import ATTEMPTS, Finished, Labour, Unit
from driftlab.errors import DriftlabError, UsageError

_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class _Worker:
    """A process, the line to it, and the unit in its hands."""

    number: int
    process: BaseProcess
    line: Connection
    unit: Unit | None = None


class LocalEngine:
    """A number of worker processes, each with its own torch and a fixed number of threads.

    ``concurrent.futures`` gives up the whole pool when one worker dies; here the dead one is replaced and only its
    unit is measured again.

    Parameters
    ----------
    workers : int
        Processes.
    threads : int, optional
        Threads of each; by default the cores divided among the workers.

    Raises
    ------
    UsageError
        If either is below 1.
    """

    def __init__(self, workers: int, threads: int | None = None) -> None:
        for name, value in (("--workers", workers), ("--threads", threads)):
            if value is not None and value < 1:
                raise UsageError(f"{name}: expected a number of at least 1, found {value}.")
        self.workers: int | None = workers
        self.places = range(workers)
        self.threads = threads or max(1, cores() // workers)

    def run(self, units: Sequence[Unit], labour: Labour) -> Iterator[Finished]:
        """Yield every unit once, in the order in which they are done.

        Raises
        ------
        DriftlabError
            If workers die one after the other and nothing gets done.
        """
        waiting, attempts = deque(units), dict.fromkeys((unit.name for unit in units), 0)
        staff: list[_Worker] = []
        futile = 0
        try:
            while waiting or any(worker.unit for worker in staff):
                self._hand_out(waiting, staff, labour)
                done: list[Finished] = []
                failure: Exception | None = None
                for worker in [w for w in staff if w.line in wait([w.line for w in staff if w.unit])]:
                    unit, worker.unit = worker.unit, None
                    assert unit is not None
                    try:
                        failed, content = worker.line.recv()
                        futile = 0
                        if failed:
                            failure = content
                        else:
                            done.append(Finished(unit, content))
                    except (EOFError, OSError):
                        staff.remove(worker)
                        how = _end(worker)
                        futile += 1
                        attempts[unit.name] += 1
                        if attempts[unit.name] < ATTEMPTS:
                            waiting.appendleft(unit)
                        else:
                            done.append(Finished(unit, error=f"its worker was lost {ATTEMPTS} times ({how})"))
                        self._not_for_ever(futile, how)
                if failure is None:
                    self._hand_out(waiting, staff, labour)  # before the caller writes: nobody waits for its disk
                yield from done
                if failure is not None:
                    raise failure
        finally:
            for worker in staff:
                worker.process.terminate()
                _end(worker)

    def _not_for_ever(self, futile: int, how: str) -> None:
        if futile > ATTEMPTS * (len(self.places) + 1):
            raise DriftlabError(
                f"Workers: expected units to get done, found {futile} workers lost in a row, the last {how}.",
                "Try --workers 1, which shows the cause.",
            )

    def _hand_out(self, waiting: deque[Unit], staff: list[_Worker], labour: Labour) -> None:
        """Give every idle worker a unit, and start workers as long as there is work for them."""
        taken = {worker.number for worker in staff}
        free = (number for number in self.places if number not in taken)
        while waiting and (idle := next((w for w in staff if not w.unit), None) or self._hire(free, staff, labour)):
            unit = waiting.popleft()
            try:
                idle.line.send(unit.payload)
                idle.unit = unit
            except OSError:  # died while idle: nobody's fault
                waiting.appendleft(unit)
                staff.remove(idle)
                _end(idle)

    def _hire(self, free: Iterator[int], staff: list[_Worker], labour: Labour) -> _Worker | None:
        number = next(free, None)
        if number is None:
            return None
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads in an unknown state
        here, there = context.Pipe()
        with pinned(self.threads):
            process = context.Process(
                target=_work, args=(there, labour, number), name=f"driftlab-{number}", daemon=True
            )
            process.start()
        there.close()  # else the death of the worker would not end the line
        worker = _Worker(number, process, here)
        staff.append(worker)
        return worker


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Set how many threads the libraries of a process started now will use."""
    before = {name: os.environ.get(name) for name in _POOLS}
    os.environ.update(dict.fromkeys(_POOLS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end(worker: _Worker) -> str:
    """Close the line, wait for the process, and say how it ended."""
    worker.line.close()
    worker.process.join(5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    code = worker.process.exitcode or 0
    worker.process.close()
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _work(line: Connection, labour: Labour, number: int) -> None:
    """Turn payloads into results until the line ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent ends its workers
    try:
        with labour.start(number) as work:
            while True:
                line.send((False, work(line.recv())))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone or has no more work
    except Exception as error:
        line.send((True, _portable(error)))


def _portable(error: Exception) -> Exception:
    """Return an exception that survives the trip to the parent."""
    if isinstance(error, DriftlabError):
        return error
    return RuntimeError(f"in a worker: {type(error).__name__}: {error}\n{traceback.format_exc()}")
