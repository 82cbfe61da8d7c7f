"""The new singular values from the update, and how far their shift can be off."""

import math

import torch
from torch import Tensor

from driftlab.spectral.decomposition import EPS
from driftlab.spectral.tracked_subspace import bottom_values
from driftlab.spectral.update import WINDOW, Update, Window, mixing

_CENTRE = 32
_SAMPLE = 64
_SAFETY = 4.5
_ROUNDING = 1e-8  # of ‖D‖_F in the diagonal of E; measured on 576 × 1536
_FLOOR = 1.5e-7
_CROWD = 0.1  # mixing with a third level beyond which pairs do not describe a level
_REPEATED = 0.5  # mean mixing of a level with all others beyond which values are repeated rather than close


def spectrum(update: Update, tolerance: float) -> tuple[Tensor, float]:
    """Return the new singular values, scaled, and the relative error of their shift's norm.

    Each way is tried where the one before is not good enough: pairs of levels, each an exact 2 × 2 problem;
    overlapping windows of 64 of which the middle 32 values are taken; these with the smallest values by projection;
    all eigenvalues of G, at some forty times the cost of pairs and half that of a new decomposition.

    Parameters
    ----------
    update : Update
    tolerance : float
        Relative error of ``nss`` that is good enough.

    Returns
    -------
    values : Tensor of shape (m,), float64
        Not sorted: two close values may have crossed.
    error : float
        Relative error of ‖σ(W1) − σ(W0)‖; infinite where the expansion does not hold.
    """
    level = update.level
    crowd = 0.0
    if len(level) > WINDOW:
        T = update.mixed
        shares = T.square()
        crowd, third = float(shares.sum()) / len(level), float((shares.sum(1) - shares.amax(1)).max())
        if third < _CROWD:
            values = _root(level + (T * update.first).sum(1).double())
            rows = _rows(len(level), level.device)
            error = shift_error(update, values, T[rows], torch.ones_like(T[rows], dtype=torch.bool), rows, crowd)
            if error <= tolerance / 3:
                return values, error
    if crowd <= _REPEATED:
        values, error = _windowed(update, tolerance, crowd)
        if error <= tolerance or len(level) <= WINDOW:
            return values, error
    return _whole(update)


def _windowed(update: Update, tolerance: float, crowd: float) -> tuple[Tensor, float]:
    level = update.level
    values = torch.empty_like(level)
    rows = _rows(len(level), level.device)
    T = update.mixed[rows]
    far = torch.ones_like(T, dtype=torch.bool)
    for start, stop, low, high in windows(len(level)):
        found = torch.linalg.eigvalsh(Window.of(update, start, stop).M).flip(0)
        values[low:high] = found[low - start : high - start]
        far[(rows >= low) & (rows < high), start:stop] = False
    values = _root(values)
    error = shift_error(update, values, T, far, rows, crowd)
    if error <= tolerance or len(level) <= WINDOW:
        return values, error
    values[-WINDOW:] = bottom_values(update, WINDOW, tolerance)
    far[rows >= len(level) - WINDOW] = False
    return values, shift_error(update, values, T, far, rows, crowd)


def _whole(update: Update) -> tuple[Tensor, float]:
    """Take all eigenvalues of G in float64: nothing is expanded, what remains is rounding."""
    G = update.both.double()
    G.diagonal().copy_(update.level)
    values = _root(torch.linalg.eigvalsh(G).flip(0))
    total = float(torch.linalg.vector_norm(values - update.frame.sigma))
    if not math.isfinite(total) or total == 0:
        return values, math.inf
    lost = _lost(update.level[:1].clamp(min=0), values)
    return values, (_ROUNDING * update.norm + lost) / total + _FLOOR


def windows(d: int) -> list[tuple[int, int, int, int]]:
    """Return (start, stop, low, high): overlapping windows, and the rows each is used for.

    Examples
    --------
    >>> windows(80)
    [(0, 64, 0, 32), (16, 80, 32, 64), (16, 80, 64, 80)]
    """
    if d <= WINDOW:
        return [(0, d, 0, d)]
    margin = (WINDOW - _CENTRE) // 2
    starts = [(max(0, min(low - margin, d - WINDOW)), low) for low in range(0, d, _CENTRE)]
    return [(start, start + WINDOW, low, min(low + _CENTRE, d)) for start, low in starts]


def shift_error(update: Update, values: Tensor, T: Tensor, far: Tensor, rows: Tensor, crowd: float) -> float:
    """Estimate the relative error of ‖σ(W1) − σ(W0)‖ from the third-order term of some of the singular values.

    Errors e_i of single values have no common sign, so the norm is off by about sqrt(Σ e_i² Δ_i²)/‖Δ‖. Three times
    that is taken, beside the sampled Σ e_i Δ_i itself and Σ e_i²; all 4.5 times, and more by the square root of how
    many levels share one place (``crowd``), for what close neighbours in a window add to each other. Rounding of
    float32 products comes on top. Couplings of second order to distant levels, which are left out of the values,
    count as if they were errors. ``T`` and ``far`` are rows of the mixing and of what is outside the row's window.
    """
    level, shift = update.level, values - update.frame.sigma
    total = float(shift.square().sum())
    if not math.isfinite(total) or total == 0:
        return math.inf
    T, second = T * far, update.second[rows] * far
    narrow = level.float()
    third = ((T @ update.first + 2 * second) * T).sum(1).double()
    left_out = mixing(second, narrow[rows, None], narrow)
    if float(left_out.square().sum(1).max()) > _CROWD:
        return math.inf
    third = third.abs() + (left_out * second).sum(1).double().abs()
    here = values[rows]
    error = third / (here + (here.square() + third.abs()).sqrt()).clamp(min=torch.finfo(torch.float32).tiny)
    factor = len(shift) / len(rows)
    moved = error * shift[rows]
    spread = math.sqrt(factor * float(moved.square().sum()))
    sampled = abs(factor * float(moved.sum()))
    square = factor * float(error.square().sum())
    safety = _SAFETY * math.sqrt(1 + crowd)
    above = level[(torch.arange(len(level), device=level.device) - WINDOW).clamp(min=0)].clamp(min=0)
    rounding = (_ROUNDING * update.norm + _lost(above, values)) / math.sqrt(total) + _FLOOR
    return safety * (sampled + 3 * spread + square) / total + rounding


def _lost(above: Tensor, values: Tensor) -> float:
    """Return what float64 eigenvalues, squares, lose of values far below ``above``, the largest square beside each."""
    lost = EPS * above
    return float(torch.linalg.vector_norm(lost / torch.maximum(values, lost.sqrt()).clamp(min=1e-300)))


def _rows(d: int, device: torch.device) -> Tensor:
    """Rows whose third order is computed: all of a few, else 64 spread evenly."""
    return torch.linspace(0, d - 1, d if d <= 4 * _SAMPLE else _SAMPLE, device=device).round().long()


def _root(squared: Tensor) -> Tensor:
    return squared.clamp(min=0).sqrt()
