"""Leading singular subspaces of the new matrix from the update, their angles to the base's, and the errors."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from driftlab.spectral.update import WINDOW, Update, Window

_STEPS = 8
_SLOWER = 12.0
_FLOOR = 3.5e-7  # relative rounding of float32 products in an angle, thirty times that near 90°
_CONTRAST = 1e-7
_SAFETY = 2.6


@dataclass(frozen=True)
class Subspace:
    """The top-k singular subspace of the short side, in the frame of the base.

    Attributes
    ----------
    L : Tensor of shape (m, k), float32
        Spanning columns, for a small update close to the first k unit vectors.
    missing : Tensor of shape (m, k), float32
        Estimate of what further steps would add to L; infinite or NaN where they do not converge.
    tail : float
        ``missing`` in units of the last step.
    """

    L: Tensor
    missing: Tensor
    tail: float = 0.0


@dataclass(frozen=True)
class _Cut:
    """Solution of the Riccati equation at a cut, in the basis whose window is turned by Q."""

    T: Tensor
    missing: Tensor
    tail: float
    Q: Tensor
    start: int
    stop: int

    def turn_back(self, columns: Tensor) -> Tensor:
        columns[self.start : self.stop] = self.Q @ columns[self.start : self.stop]
        return columns


def subspace(update: Update, k: int, tolerance: float) -> Subspace:
    """Find the top-k subspace of the short side, 1 ≤ k < m.

    Parameters
    ----------
    update : Update
    k : int
    tolerance : float
        Relative error of an angle that is good enough.
    """
    cut = _cut(update, k, tolerance)
    eye = torch.eye(k, dtype=cut.T.dtype, device=cut.T.device)
    L = cut.turn_back(torch.cat([eye, cut.T]))
    return Subspace(L, cut.turn_back(torch.cat([torch.zeros_like(eye), cut.missing])), cut.tail)


def bottom_values(update: Update, count: int, tolerance: float) -> Tensor:
    """Return the ``count`` smallest new singular values, scaled, descending; NaN where the equation is not solved.

    They may be as small as the update itself, where an expansion in their ratio fails. Here the subspace they live in
    is separated from the rest first and the update is projected on it, which is right to second order in what the
    subspace is missing.
    """
    d = len(update.level)
    cut = _cut(update, d - count, tolerance)
    if not bool(torch.isfinite(cut.missing).all()):
        return torch.full((count,), math.nan, dtype=torch.float64, device=cut.T.device)
    eye = torch.eye(count, dtype=cut.T.dtype, device=cut.T.device)
    L = cut.turn_back(torch.cat([-cut.T.mT, eye]))
    _, outside = _image(update, L)
    wide = L.double()  # beside values as small as the update stand ordinary ones, whose shift float32 would lose
    inside = (update.E.mT @ L).double() + update.frame.sigma[:, None] * wide
    gram = inside.mT @ inside + outside
    lower = torch.linalg.cholesky(wide.mT @ wide)
    half = torch.linalg.solve_triangular(lower, gram, upper=False)
    squares = torch.linalg.eigvalsh(torch.linalg.solve_triangular(lower, half.mT, upper=False)).flip(0)
    values: Tensor = squares.clamp(min=0).sqrt()
    return values


def _cut(update: Update, k: int, tolerance: float) -> _Cut:
    r"""Separate the top-k levels from the rest.

    The window around the cut is diagonalised, so that a closed gap at k is no obstacle. What lies above the cut
    couples to what lies below by the invariant-subspace (Riccati) equation
    :math:`G_{21}+G_{22}T-TG_{11}-TG_{12}T=0`, solved in the turned basis by fixed-point steps, each dividing by the
    gaps of the levels, until what is missing lies well below the tolerance.

    References
    ----------
    G. W. Stewart, "Error and perturbation bounds for subspaces associated with certain eigenvalue problems",
    SIAM Review 15(4), 1973.
    """
    d = len(update.level)
    start, stop = max(0, k - WINDOW // 2), min(d, k + WINDOW // 2)
    window = Window.of(update, start, stop)
    values, vectors = torch.linalg.eigh(window.M)
    Q = vectors.flip(1).float()
    level = update.level.clone()
    level[start:stop] = values.flip(0)
    narrow = level.float()
    gap = narrow[:k] - narrow[k:, None]

    G = _turn(update.both, Q, start, stop)
    G[start:stop, start:stop] = -(Q.mT @ window.folded @ Q)  # the levels are those of M, which has it folded in
    source = G[k:, :k]
    T = source / gap
    T[: stop - k, start:] = 0  # folding has dealt with these already
    steps = [float(torch.linalg.vector_norm(T))]
    for _ in range(_STEPS):
        after = (source + G[k:, k:] @ T - T @ G[:k, :k] - T @ (G[:k, k:] @ T)) / gap
        step, T = after - T, after
        steps.append(float(torch.linalg.vector_norm(step)))
        tail = _tail(steps[-1], steps[-2])
        if tail * steps[-1] <= 0.03 * tolerance * float(torch.linalg.vector_norm(T)):
            break
    return _Cut(T, tail * step, tail, Q, start, stop)


def _tail(last: float, before: float) -> float:
    """Return the sum of all later steps in units of the last one, were they to shrink at twelve times its rate.

    The first step is mostly of levels far from the cut. What it changes moves those beside the cut in the next one:
    on real weights that shrinks up to nine times less.
    """
    rate = _SLOWER * last / before if before > 0 else 0.5
    return rate / (1 - rate) if rate < 0.9 else math.inf


def _turn(H: Tensor, Q: Tensor, start: int, stop: int) -> Tensor:
    """Turn the window's rows and columns of a symmetric matrix by Q."""
    G = H.clone()
    G[start:stop] = Q.mT @ G[start:stop]
    G[:, start:stop] = G[:, start:stop] @ Q
    return G


@dataclass(frozen=True)
class Angles:
    """Sines of the principal angles of one side.

    Attributes
    ----------
    sines : Tensor of shape (k,), float64
        Ascending.
    largest_error, median_error : float
        How far the largest and the median sine can be off.
    """

    sines: Tensor
    largest_error: float
    median_error: float


def near_angles(update: Update, space: Subspace) -> Angles:
    """Return the angles of the short side between the base's top-k subspace and the new one."""
    k = space.L.shape[1]
    L = space.L
    below = (L[k:].mT @ L[k:]).double()
    return _angles(update, below, (L[:k].mT @ L[:k]).double() + below, space.missing, space.tail)


def far_angles(update: Update, space: Subspace) -> Angles:
    r"""Return the angles of the long side, whose new subspace is spanned by :math:`W_1^TUL`."""
    k = space.L.shape[1]
    inside, outside = _image(update, space.L)
    below = (inside[k:].mT @ inside[k:]).double() + outside
    missing = update.s[:, None] * space.missing
    return _angles(update, below, (inside[:k].mT @ inside[:k]).double() + below, missing, space.tail)


def _image(update: Update, L: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`W_1^TUL` inside the base's V, :math:`(\Sigma+E^T)L`, and the Gram matrix of the part outside.

    The latter is :math:`L^T(XX^T-EE^T)L`, float64; 0 for a square matrix, whose V is complete.
    """
    turned = update.E.mT @ L
    inside = torch.addcmul(turned, update.s[:, None], L)
    if update.X.shape[1] == update.X.shape[0]:
        return inside, L.new_zeros((), dtype=torch.float64)
    image = torch.addcmul(update.second @ L, update.row_energy.float()[:, None], L)
    return inside, (L.mT @ image - turned.mT @ turned).double()


def _angles(update: Update, below: Tensor, gram: Tensor, missing: Tensor, tail: float) -> Angles:
    """Solve ``below`` x = sin² ``gram`` x, and estimate the errors from what the vectors' columns are missing.

    The largest angle's direction may be the slowest to converge: its own last step, over its sine, tells how fast it
    does, and 2.6 times the norm is taken. For the median's, what is missing has no preferred direction: 1.5 standard
    deviations of a random one.
    """
    lower = torch.linalg.cholesky(gram)
    half = torch.linalg.solve_triangular(lower, below, upper=False)
    squares, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(lower, half.mT, upper=False))
    sines = squares.clamp(min=0).sqrt()
    at = [len(sines) - 1, (len(sines) - 1) // 2]
    weights = torch.linalg.solve_triangular(lower.mT, vectors[:, at], upper=True)
    moved = torch.linalg.vector_norm(missing @ weights.float(), dim=0).double()
    if tail:
        step = float(moved[0]) / tail
        moved[0] = max(float(moved[0]), step * _tail(step, float(sines[-1])))
    rounding = 1.5e-8 * sines[-1] ** 2 / sines[at[1]].clamp(min=1e-300)
    floor = _FLOOR + _CONTRAST * update.contrast
    largest = float(_SAFETY * moved[0] + floor * (1 + 30 * sines[-1]) * sines[-1])
    spread = 1.5 / math.sqrt(max(1, len(missing) - len(sines)))
    median = float(spread * moved[1] + 1.25 * (floor + _CONTRAST * update.contrast) * sines[at[1]] + rounding)
    return Angles(sines, largest, median)
