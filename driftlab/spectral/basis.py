"""The stored decomposition of a base matrix, and the decomposition itself with its fallbacks and self-checks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from driftlab.errors import NumericalError, ShapeError
from driftlab.spectral.masks import largest_mask, mask_size, smallest_mask
from driftlab.spectral.measures import Plan

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


def _gram(W: Tensor) -> Decomposition | None:
    wide = W.shape[0] <= W.shape[1]
    thin = W if wide else W.mT
    values, vectors = torch.linalg.eigh(thin @ thin.mT)
    sigma = values.clamp(min=0).sqrt().flip(0)
    if sigma[-1] * _GRAM_CONDITION < sigma[0]:
        return None
    near = vectors.flip(1)
    far = (thin.mT @ near) / sigma
    error = len(sigma) ** 0.5 * EPS * sigma[0] ** 2 / sigma
    left, right = (near, far) if wide else (far, near)
    return Decomposition(left, sigma, right, error, "gram")


def _gesdd(W: Tensor) -> Decomposition:
    U, sigma, Vh = torch.linalg.svd(W, full_matrices=False)
    return Decomposition(U, sigma, Vh.mT, torch.full_like(sigma, len(sigma) ** 0.5 * EPS) * sigma[0], "gesdd")


def _gesvd(W: Tensor) -> Decomposition:
    U, sigma, Vh = scipy.linalg.svd(W.cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
    left, values, right = (torch.as_tensor(np.ascontiguousarray(x), device=W.device) for x in (U, sigma, Vh.T))
    return Decomposition(left, values, right, torch.full_like(values, len(values) ** 0.5 * EPS) * values[0], "gesvd")


def _zero(W: Tensor) -> Decomposition:
    m, n = W.shape
    d = min(m, n)
    zeros = W.new_zeros(d)
    eye = torch.eye(max(m, n), d, dtype=W.dtype, device=W.device)
    return Decomposition(eye[:m], zeros, eye[:n], zeros.clone(), "zero")


def _passes(W: Tensor, found: Decomposition) -> bool:
    """Check orthonormality of the short side, the norm identity, and the reconstruction through one vector."""
    near = found.U if W.shape[0] <= W.shape[1] else found.V
    eye = torch.eye(near.shape[1], dtype=near.dtype, device=near.device)
    orthonormal = float((near.mT @ near - eye).abs().max()) < 1e-10
    energy, expected = float(found.sigma.square().sum()), float(W.square().sum())
    return orthonormal and math.isclose(energy, expected, rel_tol=1e-10)


class Basis:
    """A base matrix with its decomposition and masks, made once and used for every checkpoint.

    Parameters
    ----------
    base : Tensor of shape (m, n)
        The base matrix in its stored type, finite, with at least one entry.
    plan : Plan
        Ranks and mask fraction.

    Attributes
    ----------
    stored : Tensor
        The matrix as given.
    W : Tensor, float64
        The same values.
    svd : Decomposition
    k, r : int
        Ranks used for the angles and the masks; k is also capped at the numerical rank of the base.

    Raises
    ------
    ShapeError
        If ``base`` is not a matrix with entries.
    NumericalError
        If it holds NaN or infinity, or cannot be decomposed.
    """

    def __init__(self, base: Tensor, plan: Plan) -> None:
        require_matrix("base", base)
        self.stored = base
        self.W = base.double()
        self.plan = plan
        self.svd = decompose(self.W)
        self.k, self.r = plan.ranks(min(base.shape))
        self.k = max(1, min(self.k, self.rank))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self.W.shape[0], self.W.shape[1])

    @cached_property
    def rank(self) -> int:
        """Numerical rank: singular values that stand above their own error."""
        floor = self.svd.sigma_error.clamp(min=max(self.shape) * EPS * float(self.svd.sigma[0]))
        return int((self.svd.sigma > floor).sum())

    @cached_property
    def norm(self) -> float:
        """Frobenius norm."""
        return float(torch.linalg.vector_norm(self.W))

    @cached_property
    def mask(self) -> Tensor:
        """Principal mask of the base."""
        return principal_mask(self.svd, self.r, self.plan.mask_fraction)

    @cached_property
    def low_mask(self) -> Tensor:
        """As many entries of smallest magnitude."""
        return smallest_mask(self.W, mask_size(self.plan.mask_fraction, self.W.numel()))


def principal_mask(svd: Decomposition, r: int, fraction: float) -> Tensor:
    """Mark the entries of largest magnitude of the rank-r truncated decomposition.

    Parameters
    ----------
    svd : Decomposition
        Of a matrix of shape (m, n).
    r : int
        Rank of the truncation, 1 … d.
    fraction : float
        Share of the entries, in (0, 1); the count is rounded half up.

    Returns
    -------
    Tensor of bool of shape (m, n)

    References
    ----------
    "The Path Not Taken", arXiv 2511.08567; "LIFT", arXiv 2506.00772.
    """
    truncated = (svd.U[:, :r] * svd.sigma[:r]) @ svd.V[:, :r].mT
    return largest_mask(truncated, mask_size(fraction, truncated.numel()))


def require_matrix(what: str, W: Tensor) -> None:
    """Raise unless ``W`` is a finite floating-point matrix with entries."""
    if W.ndim != 2 or W.numel() == 0:
        raise ShapeError(f"{what}: expected a matrix with entries, found shape {tuple(W.shape)}.")
    if not W.dtype.is_floating_point:
        raise ShapeError(f"{what}: expected floating-point values, found {W.dtype}.")
    bad = bad_values(W)
    if bad:
        raise NumericalError(f"{what}: expected finite values, found {bad}.")


def bad_values(W: Tensor) -> str:
    """Say how many entries are NaN or infinite; an empty string where none is.

    Examples
    --------
    >>> bad_values(torch.tensor([1.0, float("nan")]))
    '1 NaN'
    """
    if torch.isfinite(W.sum(dtype=torch.float64)):
        return ""  # a sum over NaN or infinity is never finite
    nan, inf = int(torch.isnan(W).sum()), int(torch.isinf(W).sum())
    return " and ".join(f"{count} {name}" for count, name in ((nan, "NaN"), (inf, "infinite")) if count)
