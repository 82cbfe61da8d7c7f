"""How fast this machine does the work of a scan, from a few small products and decompositions made now.

What a base or an update takes beyond its products is a sum of a part for each entry, one for each entry of a square of
the short side, and a fixed one. Small matrices of several shapes are measured in full, and the three parts are the
non-negative ones that come nearest to all of them, relative to each.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from driftlab.devices import exact_math
from driftlab.planning.costs import EIGEN, Shape, updates
from driftlab.planning.overheads import rehearse
from driftlab.planning.rates import Rates
from driftlab.planning.stopwatch import Stopwatch
from driftlab.spectral.basis import Basis
from driftlab.spectral.drift import measure
from driftlab.spectral.measures import Plan

_TRACKED = ((640, 2560), (640, 640), (192, 576), (128, 128))  # long and short sides told apart, large from small
_EXACT = ((256, 1024), (192, 192), (128, 128), (64, 64))
_PRODUCT = 1024
_DRIFT = 1e-3


def calibrate(device: torch.device, threads: int | None = None) -> tuple[Rates, float]:
    """Time products, an eigendecomposition, small matrices measured in full and a rehearsal, for a few seconds.

    Parameters
    ----------
    device : torch.device
        Where.
    threads : int, optional
        Threads of one worker; by default as many as torch is set to use.

    Returns
    -------
    rates : Rates
        As if nobody else used the machine, as far as that can be told (:class:`driftlab.planning.stopwatch.Stopwatch`).
    crowding : float
        How many times as long the same takes now; 1 where that cannot be told.
    """
    with exact_math(), _threads(threads):
        watch = Stopwatch(device)
        product32 = _product(torch.float32, device, watch)
        product64 = _product(torch.float64, device, watch)
        symmetric = _random(_PRODUCT, _PRODUCT, device).double()
        symmetric = symmetric + symmetric.mT
        eigen = watch.seconds(lambda: torch.linalg.eigh(symmetric)) / (EIGEN * _PRODUCT**3)
        rates = Rates(product32, product64, eigen, 0.0, 0.0, 0.0)
        base, tracked = _measured(_TRACKED, Plan(), device, watch)
        small, exact = _measured(_EXACT, Plan(method="exact"), device, watch)
        parts = {
            "base": fit(base + small, rates.base),
            "update": fit(tracked, rates.tracked),
            "exact": fit(exact, rates.exact),
        }
        crowding = watch.crowding
        found = {
            f"{kind}_{part}": value
            for kind, values in parts.items()
            for part, value in zip(("entry", "square", "fixed"), values, strict=True)
        }
        return replace(rates, **found, **rehearse(crowding)), crowding


def fit(timed: Sequence[tuple[Shape, float]], known: Callable[[Shape], float]) -> tuple[float, float, float]:
    """Return seconds for an entry, for an entry of the short side's square, and for nothing, beyond what is known.

    Parameters
    ----------
    timed : sequence of (Shape, float)
        Seconds that matrices took.
    known : callable
        Seconds that a shape is known to take.

    References
    ----------
    C. Lawson and R. Hanson, Solving Least Squares Problems, 1974, chapter 23 (non-negative least squares).

    Examples
    --------
    >>> shapes = [Shape(d, D, 1) for d, D in ((2, 2), (2, 8), (4, 4))]
    >>> [round(part, 9) for part in fit([(s, 1 + 3 * s.entries + 2 * s.d**2) for s in shapes], lambda shape: 1.0)]
    [3.0, 2.0, 0.0]
    """
    weights = np.array([1.0 / seconds for _, seconds in timed])
    terms = np.array([[shape.entries, shape.d**2, 1.0] for shape, _ in timed])
    scale = terms.max(axis=0)
    left = np.array([max(0.0, seconds - known(shape)) for shape, seconds in timed])
    found, _ = nnls(terms / scale * weights[:, None], left * weights)
    entry, square, fixed = (float(value) for value in found / scale)
    return entry, square, fixed


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measured(
    sides: Sequence[tuple[int, int]], plan: Plan, device: torch.device, watch: Stopwatch
) -> tuple[list[tuple[Shape, float]], list[tuple[Shape, float]]]:
    """Return what bases of these shapes take, and an update of each."""
    bases, each = [], []
    for rows, cols in sides:
        shape = Shape.of(rows, cols, plan)
        base = _random(rows, cols, device)
        new = (base + _DRIFT * _random(rows, cols, device, seed=1)).bfloat16()
        stored = base.bfloat16()
        basis = Basis(stored, plan).warm()
        bases.append((shape, watch.seconds(partial(_warm, stored, plan))))
        each.append((shape, watch.seconds(partial(measure, basis, new)) / updates(plan)))
    return bases, each


def _warm(stored: Tensor, plan: Plan) -> Basis:
    return Basis(stored, plan).warm()


def _product(dtype: torch.dtype, device: torch.device, watch: Stopwatch) -> float:
    left = _random(_PRODUCT, _PRODUCT, device).to(dtype)
    return watch.seconds(lambda: left @ left) / (2 * _PRODUCT**3)


def _random(rows: int, cols: int, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).to(device)
