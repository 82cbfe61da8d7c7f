"""Make the runs of a study, each in a process of its own with one thread, and pick up where a kill left them."""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from driftlab.errors import DriftlabError
from driftlab.results import ResultsDir
from driftlab.study.plan import Method, StudyPlan

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
    """Return the runs of a study in its folder, the methods of one seed after those of another."""
    return [
        StudyRun(method, seed, folder / "runs" / f"{method.name}-s{seed}")
        for seed in plan.seeds
        for method in plan.methods
    ]


def make_runs(
    plan: StudyPlan, runs: list[StudyRun], results: ResultsDir, *, workers: int, device: str, on_step: Progress
) -> dict[str, str]:
    """Train runs and measure their policy, ``workers`` at a time, resuming those that were begun.

    Parameters
    ----------
    plan : StudyPlan
    runs : list of StudyRun
    results : ResultsDir
        Its manifest keeps which runs are done.
    workers : int
        Processes at a time.
    device : str
        Where each trains.
    on_step : callable
        Called with (steps taken, run name) as the logs grow.

    Returns
    -------
    dict of str to str
        Why a run failed, by name; the others go on.
    """
    done = list(results.manifest()["commands"]["study"].get("done", []))
    failed: dict[str, str] = {}
    for run in runs:
        if run.name in done:
            on_step(run.steps, run.name)
    with _processes(workers) as pool:
        waiting: dict[Future[str], StudyRun] = {
            pool.submit(_make, plan, run, results.path / "policies" / run.name, device, os.getpid()): run
            for run in runs
            if run.name not in done
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
                    done.append(run.name)
                    results.update(done=done)
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


def _make(plan: StudyPlan, run: StudyRun, policy: Path, device: str, parent: int) -> str:
    """Make one run and return what went wrong, if anything; runs in a process of its own."""
    import torch

    from driftlab.study.policy import measure_run_policy
    from driftlab.training.trainer import prepare, train

    torch.set_num_threads(1)

    def alone(*_: object) -> None:  # a study that was killed must not go on writing beside its own rerun
        if os.getppid() != parent:
            os._exit(1)

    begun = (run.folder / "run.json").is_file()
    if run.folder.exists() and not begun:  # killed while it was being made
        shutil.rmtree(run.folder)
    try:
        train(prepare(run.method.config(run.seed), device), run.folder, resume=begun, on_step=alone)
        measure_run_policy(plan, run.name, run.folder, policy, device, alone)
    except DriftlabError as error:
        return str(error)
    return ""
