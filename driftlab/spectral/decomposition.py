"""The singular value decomposition of a matrix in float64, with its fallbacks and self-checks."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from driftlab.errors import NumericalError

EPS = torch.finfo(torch.float64).eps
_GRAM_CONDITION = 1e6  # beyond it a Gram matrix loses the small singular values: sigma² spans more than 1e12


@dataclass(frozen=True)
class Decomposition:
    r"""A thin singular value decomposition :math:`W = U\,\mathrm{diag}(\sigma)\,V^T` in float64.

    Attributes
    ----------
    U : Tensor of shape (m, d)
        Left vectors, d = min(m, n).
    sigma : Tensor of shape (d,)
        Singular values, descending.
    V : Tensor of shape (n, d)
        Right vectors.
    sigma_error : Tensor of shape (d,)
        How far each singular value can be off.
    route : str
        How it was made: ``gram``, ``gesdd``, ``gesvd`` (LAPACK's names), or ``zero``.
    """

    U: Tensor
    sigma: Tensor
    V: Tensor
    sigma_error: Tensor
    route: str


def decompose(W: Tensor) -> Decomposition:
    r"""Decompose a finite float64 matrix, by the cheapest route whose self-check passes.

    The Gram route takes eigenvectors of :math:`WW^T` on the smaller side and costs a fraction of an SVD; its
    singular values are off by about :math:`\epsilon\sigma_1^2/\sigma_i`. Ill-conditioned matrices, and results that
    fail :math:`\|U^TU-I\|` or :math:`\sum\sigma^2=\|W\|_F^2`, go to LAPACK's ``gesdd`` and then ``gesvd``.

    Parameters
    ----------
    W : Tensor of shape (m, n), float64
        Finite; other values must be screened before, LAPACK may return NaN or hang on them.

    Raises
    ------
    NumericalError
        If no route gives a decomposition that passes its check.
    """
    scale = float(W.abs().max()) if W.numel() else 0.0
    if scale == 0:
        return _zero(W)
    W = W / scale  # squares of entries like 1e-30 or 1e200 would leave the range of float64
    routes: tuple[tuple[str, Callable[[Tensor], Decomposition | None]], ...] = (
        ("gram", _gram),
        ("gesdd", _gesdd),
        ("gesvd", _gesvd),
    )
    for _, route in routes:
        try:
            found = route(W)
        except (RuntimeError, np.linalg.LinAlgError):  # torch reports a failed convergence as a RuntimeError
            continue
        if found is not None and _passes(W, found):
            return Decomposition(found.U, found.sigma * scale, found.V, found.sigma_error * scale, found.route)
    raise NumericalError(
        f"Matrix of shape {tuple(W.shape)}: expected a decomposition with orthonormal vectors, found none by "
        f"{', '.join(name for name, _ in routes)}."
    )


def decompose_many(matrices: list[Tensor]) -> list[Decomposition]:
    """Decompose matrices of one shape together, as a GPU likes it: one batched product and one batched ``eigh``.

    Each result passes the same checks as that of :func:`decompose`, which takes over for those that do not.

    Parameters
    ----------
    matrices : list of Tensor of shape (m, n), float64
        Finite.

    Raises
    ------
    NumericalError
        As :func:`decompose`.
    """
    scales = [float(W.abs().max()) or 1.0 for W in matrices]
    stack = torch.stack([W / scale for W, scale in zip(matrices, scales, strict=True)])
    thin = stack if stack.shape[1] <= stack.shape[2] else stack.mT
    try:
        values, vectors = torch.linalg.eigh(thin @ thin.mT)
    except RuntimeError:  # one that does not converge fails the batch
        return [decompose(W) for W in matrices]
    found = []
    for i, (W, scale) in enumerate(zip(matrices, scales, strict=True)):
        one = _from_gram(stack[i], values[i], vectors[i])
        if one is None or not _passes(stack[i], one):
            found.append(decompose(W))
        else:
            found.append(Decomposition(one.U, one.sigma * scale, one.V, one.sigma_error * scale, one.route))
    return found


def _gram(W: Tensor) -> Decomposition | None:
    thin = W if W.shape[0] <= W.shape[1] else W.mT
    return _from_gram(W, *torch.linalg.eigh(thin @ thin.mT))


def _from_gram(W: Tensor, values: Tensor, vectors: Tensor) -> Decomposition | None:
    """Return the decomposition from the eigenpairs of the Gram matrix, or None where it is too ill-conditioned."""
    wide = W.shape[0] <= W.shape[1]
    thin = W if wide else W.mT
    sigma = values.clamp(min=0).sqrt().flip(0)
    if sigma[-1] * _GRAM_CONDITION < sigma[0]:
        return None
    near = vectors.flip(1)
    far = (thin.mT @ near) / sigma
    error = _unit(W) * sigma[0] ** 2 / sigma
    left, right = (near, far) if wide else (far, near)
    return Decomposition(left, sigma, right, error, "gram")


def _gesdd(W: Tensor) -> Decomposition:
    U, sigma, Vh = torch.linalg.svd(W, full_matrices=False)
    return Decomposition(U, sigma, Vh.mT, _lapack_error(W, sigma), "gesdd")


def _gesvd(W: Tensor) -> Decomposition:
    U, sigma, Vh = scipy.linalg.svd(W.cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
    left, values, right = (torch.from_numpy(np.ascontiguousarray(x)).to(W.device) for x in (U, sigma, Vh.T))
    return Decomposition(left, values, right, _lapack_error(W, values), "gesvd")


def _unit(W: Tensor) -> float:
    """Return the rounding of sums as long as the longer side, relative to the largest singular value."""
    return math.sqrt(max(W.shape)) * EPS


def _lapack_error(W: Tensor, sigma: Tensor) -> Tensor:
    """LAPACK promises "a modest factor"; close values cost up to 1.7 of this unit, so four are allowed for."""
    return torch.full_like(sigma, 4 * _unit(W)) * sigma[0]


def _zero(W: Tensor) -> Decomposition:
    m, n = W.shape
    d = min(m, n)
    zeros = W.new_zeros(d)
    eye = torch.eye(max(m, n), d, dtype=W.dtype, device=W.device)
    return Decomposition(eye[:m], zeros, eye[:n], zeros.clone(), "zero")


def _passes(W: Tensor, found: Decomposition) -> bool:
    """Check orthonormality of the short side, the norm identity, and that the vectors belong to the values.

    Nothing but the last sees vectors that lie in another order than the values, or NaN on the long side.
    """
    near = found.U if W.shape[0] <= W.shape[1] else found.V
    eye = torch.eye(near.shape[1], dtype=near.dtype, device=near.device)
    orthonormal = float((near.mT @ near - eye).abs().max()) < 1e-10
    energy, expected = float(found.sigma.square().sum()), float(W.square().sum())
    residuals = (W @ found.V.sum(1) - found.U @ found.sigma, W.mT @ found.U.sum(1) - found.V @ found.sigma)
    allowed = 1e-10 * math.sqrt(expected) + 10 * float(torch.linalg.vector_norm(found.sigma_error))
    belong = all(float(torch.linalg.vector_norm(residual)) <= allowed for residual in residuals)
    return orthonormal and belong and math.isclose(energy, expected, rel_tol=1e-10)
