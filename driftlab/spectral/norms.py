"""The spectral norm of an update by a block Krylov iteration, with its error."""

import math

import torch
from torch import Tensor

_BLOCK = 8
_MOST = 24
_FLOOR = 6e-7
_DROPPED = 1e-4  # relative size below which a new direction is noise


def spectral_norm(offdiagonal: Tensor, diagonal: Tensor, tolerance: float) -> tuple[float, float]:
    """Return the largest singular value of a matrix from its Gram matrix, and how far it can be off.

    Each round multiplies a block of 8 vectors by the Gram matrix and solves the problem projected on all of them,
    until the error estimate is a fifth of the tolerance, at most 24 rounds. The value is a lower bound. Gains shrink
    at least geometrically, so what later rounds could add is about the last gain times its ratio to the one before;
    four times that is the error. Start vectors come from a generator of their own. For the largest value, unlike for
    the small ones, a float32 Gram matrix loses nothing.

    Parameters
    ----------
    offdiagonal : Tensor of shape (m, m), float32
        The Gram matrix without its diagonal.
    diagonal : Tensor of shape (m,)
        Its diagonal.
    tolerance : float
        Relative.

    References
    ----------
    G. Golub, F. Luk and M. Overton, "A block Lanczos method for computing the singular values and corresponding
    singular vectors of a matrix", ACM TOMS 7(2), 1981; C. Musco and C. Musco, arXiv 1504.05477.
    """
    m = offdiagonal.shape[0]
    weight = diagonal.to(offdiagonal)
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(min(_BLOCK, m), m, generator=generator).to(offdiagonal)
    basis, images = offdiagonal.new_empty(0, m), offdiagonal.new_empty(0, m)
    value, gain, error = 0.0, math.inf, math.inf
    for round_ in range(_MOST):
        block = _orthonormal(block, basis)
        if not len(block):  # the space is closed under the matrix, up to what was dropped
            return value, _DROPPED * value
        basis = torch.cat([basis, block])
        block = torch.addcmul(block @ offdiagonal, block, weight)
        images = torch.cat([images, block])
        if round_ == 0:
            continue
        last, before, value = gain, value, _top(basis, images)
        gain = max(value - before, 0.0)
        if round_ >= 3:
            error = 4 * gain * min(1.0, gain / last if last else 0.0) + _FLOOR * value
            if error <= 0.2 * tolerance * value:
                break
    return value, error


def _top(basis: Tensor, images: Tensor) -> float:
    small = (basis @ images.mT).double()
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(0.5 * (small + small.mT))[-1])))


def _orthonormal(block: Tensor, basis: Tensor) -> Tensor:
    """Orthogonalise rows against the earlier ones, twice; directions that vanish are dropped."""
    size = torch.linalg.vector_norm(block, dim=1)
    for _ in range(2 if len(basis) else 0):
        block = torch.addmm(block, block @ basis.mT, basis, alpha=-1)
    q, r = torch.linalg.qr(block.mT)
    kept = r.diagonal().abs() > _DROPPED * size
    rows: Tensor = q.mT if bool(kept.all()) else q.mT[kept]
    return rows.contiguous()
