"""How fast this machine does the work of a scan, from a few small products and decompositions made now."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from driftlab.devices import exact_math
from driftlab.planning.costs import EIGEN, Shape, is_tracked, updates
from driftlab.spectral.basis import Basis
from driftlab.spectral.drift import measure
from driftlab.spectral.measures import Plan

_FLAT, _SQUARE = (640, 2560), (640, 640)  # with room for tracking; together they tell long sides from short ones
_PRODUCT = 1024
_DRIFT = 1e-3


@dataclass(frozen=True)
class Rates:
    """Seconds for one unit of each kind of work.

    Attributes
    ----------
    product32, product64 : float
        An operation of a float32 or float64 matrix product.
    eigen : float
        An operation of a float64 eigendecomposition.
    base_entry, update_entry : float
        What a base and a tracked update cost an entry beyond their products: conversions, masks, random numbers.
    update_square : float
        What a tracked update costs an entry of a square of its short side: spectra, subspaces.
    """

    product32: float
    product64: float
    eigen: float
    base_entry: float
    update_entry: float
    update_square: float

    def faster(self, times: float) -> "Rates":
        """Return the rates of a machine that is ``times`` as fast."""
        return Rates(*(rate / times for rate in astuple(self)))

    def base(self, shape: Shape) -> float:
        """Return the seconds of a base."""
        return self.product64 * shape.base_products + self.eigen * shape.eigen + self.base_entry * shape.entries

    def update(self, shape: Shape, plan: Plan) -> float:
        """Return the seconds of one update, tracked where its shape allows it."""
        if not is_tracked(shape, plan):
            return self.base(shape)
        beyond = self.update_entry * shape.entries + self.update_square * shape.d**2
        return self.product32 * shape.tracked_products + beyond

    def checkpoint(self, shape: Shape, plan: Plan) -> float:
        """Return the seconds of one checkpoint: its update and its null's."""
        return updates(plan) * self.update(shape, plan)


def calibrate(device: torch.device, threads: int | None = None) -> Rates:
    """Time products, an eigendecomposition, and two small matrices measured in full, for a few seconds.

    Parameters
    ----------
    device : torch.device
        Where.
    threads : int, optional
        Threads of one worker; by default as many as torch is set to use.
    """
    with exact_math(), _threads(threads):
        product32 = _product(torch.float32, device)
        product64 = _product(torch.float64, device)
        symmetric = _random(_PRODUCT, _PRODUCT, device).double()
        symmetric = symmetric + symmetric.mT
        eigen = _seconds(lambda: torch.linalg.eigh(symmetric), device) / (EIGEN * _PRODUCT**3)
        base_entry, flat = _whole(_FLAT, device, product32, product64, eigen)
        _, square = _whole(_SQUARE, device, product32, product64, eigen)
    d, long = _FLAT  # flat = entry * d * long + square * d^2; square = (entry + square) * d^2
    update_entry = max(0.0, flat - square) / (d * long - d**2)
    update_square = max(0.0, square / d**2 - update_entry)
    return Rates(product32, product64, eigen, base_entry, update_entry, update_square)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _whole(
    sides: tuple[int, int], device: torch.device, product32: float, product64: float, eigen: float
) -> tuple[float, float]:
    """Return what a base costs an entry, and an update altogether, beyond products and eigendecomposition."""
    plan = Plan()
    shape = Shape.of(*sides, plan)
    base = _random(*sides, device)
    new = (base + _DRIFT * _random(*sides, device, seed=1)).bfloat16()
    stored = base.bfloat16()
    basis = Basis(stored, plan).warm()
    whole = _seconds(lambda: Basis(stored, plan).warm(), device)
    each = _seconds(lambda: measure(basis, new), device) / updates(plan)
    spent = product64 * shape.base_products + eigen * shape.eigen
    return max(0.0, whole - spent) / shape.entries, max(0.0, each - product32 * shape.tracked_products)


def _product(dtype: torch.dtype, device: torch.device) -> float:
    left = _random(_PRODUCT, _PRODUCT, device).to(dtype)
    return _seconds(lambda: left @ left, device) / (2 * _PRODUCT**3)


def _random(rows: int, cols: int, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).to(device)


def _seconds(work: Callable[[], object], device: torch.device, repeat: int = 3) -> float:
    """Return the median of a few timings: the machine as it is, its other users included."""
    times = []
    for _ in range(repeat):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
