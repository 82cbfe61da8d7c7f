"""Where to compute, and arithmetic that the surrounding process cannot change."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from driftlab.errors import UsageError

_THREAD = threading.local()


def resolve_device(name: str = "auto") -> torch.device:
    """Return the torch device that a ``--device`` option names.

    Parameters
    ----------
    name : str
        ``auto`` (the first CUDA device, else the CPU), ``cpu``, ``cuda``, ``cuda:i`` or ``mps``.

    Raises
    ------
    UsageError
        If the name is unknown, several are named, or the device is not there.

    Examples
    --------
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "," in name:
        raise UsageError(
            f"Device {name!r}: expected one device, found several.",
            "Give cuda; svd --workers N takes one GPU for each, and CUDA_VISIBLE_DEVICES says which there are.",
        )
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"Device {name!r} is unknown: expected auto, cpu, cuda, cuda:0 or mps.") from None
    if device.type == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found <= (device.index or 0):
            raise UsageError(
                f"Device {name!r} is not there: this machine shows {found} CUDA devices.", "Use --device cpu."
            )
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise UsageError("Device 'mps' is not available on this machine.", "Use --device cpu.")
    elif device.type != "cpu":
        raise UsageError(f"Device {name!r} is not supported: expected auto, cpu, cuda, cuda:0 or mps.")
    return device


@contextmanager
def exact_math() -> Iterator[None]:
    """Run torch without TF32, autocast or gradients, whatever the caller's process has set.

    TF32 keeps 10 bits of mantissa: a drift of 1e-4 drowns in it. The previous settings are restored on exit,
    also after an error.

    Examples
    --------
    >>> with exact_math():
    ...     torch.is_grad_enabled()
    False
    """
    with (
        _full_float32_products(),
        torch.no_grad(),
        torch.autocast("cuda", enabled=False),
        torch.autocast("cpu", enabled=False),
    ):
        yield


@contextmanager
def _full_float32_products() -> Iterator[None]:
    """Switch TF32 off for matrix products; our maths has no convolutions.

    torch has an older switch and, since 2.9, newer ones, and refuses to read the older where a newer one was used
    last. So the older is set where it can be read, which keeps it readable, and the newer ones elsewhere.
    """
    if getattr(_THREAD, "guest", False):
        yield
        return
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    newer = [(backend, backend.fp32_precision) for backend in backends if hasattr(backend, "fp32_precision")]
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    try:
        if older:
            torch.set_float32_matmul_precision("highest")
        for backend, _ in newer:
            backend.fp32_precision = "ieee"
        yield
    finally:
        if older:
            torch.set_float32_matmul_precision(older)
        for backend, precision in newer:
            backend.fp32_precision = precision


@contextmanager
def guest_thread() -> Iterator[None]:
    """Keep :func:`exact_math` in this thread from setting switches that the threads beside it read as well.

    The precision of float32 products belongs to the process: switching it here would change the steps of a training
    loop next door. Under this guard, work in float64, or ask :func:`full_float32_products` first.
    """
    before = getattr(_THREAD, "guest", False)
    _THREAD.guest = True
    try:
        yield
    finally:
        _THREAD.guest = before


def full_float32_products() -> bool:
    """Whether products of float32 matrices keep all their bits under the process's present settings."""
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "highest"  # a newer switch was used last: those are asked below
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    newer = {getattr(backend, "fp32_precision", "ieee") for backend in backends}
    return older == "highest" and newer <= {"ieee", "none"}
