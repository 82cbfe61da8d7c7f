"""Workers on a Ray cluster."""

import os
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from driftlab.engines.base import ATTEMPTS, Finished, Labour, Unit
from driftlab.engines.local import _POOLS, cores
from driftlab.errors import DriftlabError, UsageError

_OPEN: dict[str, tuple[Any, Any]] = {}
"""In a worker process: context and work of the run it serves, kept for its next unit."""


class RayEngine:
    """Ray tasks, one a unit, on a cluster or on this machine.

    Every node needs the same driftlab and sees the checkpoints under the same paths; results come back to the
    driver, which alone writes.

    Parameters
    ----------
    workers : int, optional
        Units under way at once; by default as many as the cluster has room for.
    address : str, optional
        Of the cluster; by default ``RAY_ADDRESS``, else Ray is started on this machine.
    threads : int, optional
        Cores of each worker; by default 1, or this machine's cores divided among the workers.
    gpus : float, default 0
        GPUs of each worker.

    Raises
    ------
    UsageError
        If ray is not installed, or a number is below 1.
    """

    def __init__(
        self, workers: int | None = None, address: str | None = None, threads: int | None = None, gpus: float = 0
    ) -> None:
        for name, value in (("--workers", workers), ("--threads", threads)):
            if value is not None and value < 1:
                raise UsageError(f"{name}: expected a number of at least 1, found {value}.")
        self.ray = _import_ray()
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.workers = workers
        self.threads = threads or (1 if self.address or not workers else max(1, cores() // workers))
        self.gpus = gpus

    def run(self, units: Sequence[Unit], labour: Labour) -> Iterator[Finished]:
        """Yield every unit once, in the order in which they are done.

        Raises
        ------
        DriftlabError
            If the cluster cannot be reached.
        """
        started = self._connect()
        try:
            yield from self._run(list(units), labour)
        finally:
            if started:
                self.ray.shutdown()

    def _connect(self) -> bool:
        """Connect, and say whether it was done here."""
        if self.ray.is_initialized():
            return False
        here = {
            "num_cpus": (self.workers or max(1, cores() // self.threads)) * self.threads,
            "include_dashboard": False,
        }
        try:
            self.ray.init(
                address=self.address,
                log_to_driver=False,
                logging_level="ERROR",
                **({} if self.address else here),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise DriftlabError(
                f"Ray: expected a cluster at {self.address or 'this machine'}, found none ({error}).",
                "Check --address, or start one with `ray start --head`.",
            ) from None
        return True

    def _run(self, units: list[Unit], labour: Labour) -> Iterator[Finished]:
        ray = self.ray
        pools = dict.fromkeys(_POOLS, str(self.threads))
        task = ray.remote(
            num_cpus=self.threads, num_gpus=self.gpus, max_retries=ATTEMPTS - 1, runtime_env={"env_vars": pools}
        )(_work)
        shared, token, waiting = ray.put(labour), uuid.uuid4().hex, iter(units)
        busy: dict[Any, Unit] = {}
        room = self.workers or len(units)

        def submit() -> None:
            while len(busy) < room and (unit := next(waiting, None)) is not None:
                busy[task.options(name=unit.name).remote(shared, unit.payload, token)] = unit

        submit()
        while busy:
            (ready,), _ = ray.wait(list(busy), num_returns=1)
            unit = busy.pop(ready)
            submit()  # before the caller writes: nobody waits for its disk
            yield self._collect(ready, unit)

    def _collect(self, ready: Any, unit: Unit) -> Finished:
        errors = self.ray.exceptions
        try:
            return Finished(unit, self.ray.get(ready))
        except errors.RayTaskError as error:
            if isinstance(error.cause, DriftlabError):
                raise error.cause from None
            raise
        except errors.RayError as error:  # the worker or its node is gone, and so were those before it
            return Finished(unit, error=f"its worker was lost {ATTEMPTS} times ({type(error).__name__})")


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("Engine ray: expected the package ray, found none.", "pip install 'driftlab[ray]'.") from None
    return ray


def _work(labour: Labour, payload: Any, token: str) -> Any:
    """Turn one payload into its result; the process keeps what it has begun for the next one of this run."""
    if token not in _OPEN:
        for context, _ in _OPEN.values():
            context.__exit__(None, None, None)
        _OPEN.clear()
        context = labour.start(0)
        _OPEN[token] = context, context.__enter__()
    return _OPEN[token][1](payload)
