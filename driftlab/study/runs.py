"""Train the runs of a study, each in a process of its own with one thread, and pick up where a kill left them."""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from driftlab.errors import DriftlabError
from driftlab.study.plan import Method, StudyPlan
from driftlab.training.config import TrainConfig

_POLL = 0.5
Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class StudyRun:
    """One run of a study: a method with a seed."""

    method: Method
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.method.name}-s{self.seed}"

    @property
    def steps(self) -> int:
        """How many steps it takes."""
        return sum(stage.steps for stage in self.method.config(self.seed).stage_list())


def study_runs(plan: StudyPlan, folder: Path) -> list[StudyRun]:
    """Return the runs of a study, a seed of all methods after the other."""
    return [StudyRun(method, seed, folder / f"{method.name}-s{seed}") for seed in plan.seeds for method in plan.methods]


def train_runs(
    runs: list[StudyRun], *, workers: int, device: str, on_step: Progress, on_done: Callable[[StudyRun], None]
) -> dict[str, str]:
    """Train runs, ``workers`` at a time, resuming those that were begun.

    Parameters
    ----------
    runs : list of StudyRun
    workers : int
        Processes at a time.
    device : str
        Where each trains.
    on_step : callable
        Called with (steps taken, run name) as the logs grow.
    on_done : callable
        Called with each run that has ended well.

    Returns
    -------
    dict of str to str
        Why a run failed, by name; the others go on.
    """
    failed: dict[str, str] = {}
    with _processes(workers) as pool:
        waiting: dict[Future[str], StudyRun] = {
            pool.submit(_train, run.method.config(run.seed), run.folder, device, os.getpid()): run for run in runs
        }
        seen = dict.fromkeys((run.name for run in runs), 0)
        while waiting:
            ended, _ = wait(waiting, timeout=_POLL, return_when=FIRST_COMPLETED)
            for run in waiting.values():
                _advance(run, seen, on_step)
            for future in ended:
                run = waiting.pop(future)
                problem = future.result()
                if problem:
                    failed[run.name] = problem
                else:
                    on_done(run)
    return failed


def _advance(run: StudyRun, seen: dict[str, int], on_step: Progress) -> None:
    """Report the steps a run's log has gained."""
    log = run.folder / "steps.jsonl"
    taken = log.read_bytes().count(b"\n") if log.is_file() else 0
    if taken > seen[run.name]:
        on_step(taken - seen[run.name], run.name)
        seen[run.name] = taken


@contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of fresh processes: PyTorch's threads do not survive a fork; none is left behind on an error."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _train(config: TrainConfig, folder: Path, device: str, parent: int) -> str:
    """Train one run to its end and return what went wrong, if anything; runs in a process of its own."""
    import torch

    from driftlab.training.trainer import prepare, train

    torch.set_num_threads(1)

    def alone(_: object) -> None:  # a study that was killed must not go on writing beside its own rerun
        if os.getppid() != parent:
            os._exit(1)

    begun = (folder / "run.json").is_file()
    if folder.exists() and not begun:  # killed while it was being made
        shutil.rmtree(folder)
    try:
        train(prepare(config, device), folder, resume=begun, on_step=alone)
    except DriftlabError as error:
        return str(error)
    return ""
