"""Which engine the options of a command name."""

from driftlab.engines.base import Engine
from driftlab.engines.local import LocalEngine
from driftlab.engines.rayengine import RayEngine
from driftlab.errors import UsageError

ENGINES = ("local", "ray")


def choose_engine(
    name: str = "local",
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    device: str = "cpu",
) -> Engine | None:
    """Return the engine that options ask for; None where the process itself is enough.

    Parameters
    ----------
    name : str
        ``local`` or ``ray``.
    workers, threads : int, optional
        Workers, and the threads of each.
    address : str, optional
        Of a Ray cluster.
    device : str
        A worker on ``cuda`` takes one GPU of a Ray cluster.

    Raises
    ------
    UsageError
        If the name is unknown, a number is below 1, ray is not installed, or options contradict one another.

    Examples
    --------
    >>> choose_engine() is None, choose_engine(workers=2, threads=1).workers
    (True, 2)
    """
    if name not in ENGINES:
        raise UsageError(f"Engine {name!r} is unknown: expected one of {', '.join(ENGINES)}.")
    if name == "ray":
        return RayEngine(workers, address, threads, gpus=1 if device.startswith("cuda") else 0)
    if address is not None:
        raise UsageError("--address: expected with --engine ray, found --engine local.", "Add --engine ray.")
    if threads is None and (workers is None or workers == 1):
        return None
    return LocalEngine(1 if workers is None else workers, threads)


def device_of_workers(name: str, engine: str) -> str:
    """Return the device that workers are to use; that of a Ray cluster need not be on this machine.

    Examples
    --------
    >>> device_of_workers("cuda", "ray"), device_of_workers("cpu", "local")
    ('cuda', 'cpu')
    """
    from driftlab.devices import resolve_device  # imports torch, which an engine alone does without

    if engine == "ray" and name == "cuda":
        return name
    return str(resolve_device(name))
