"""A base matrix with its decomposition and masks, made once and used for every checkpoint."""

from functools import cached_property

import torch
from torch import Tensor

from driftlab.errors import NumericalError, ShapeError
from driftlab.spectral.decomposition import EPS, Decomposition, decompose
from driftlab.spectral.masks import largest_mask, mask_size, smallest_mask
from driftlab.spectral.measures import Plan
from driftlab.spectral.update import Frame


class Basis:
    """A base matrix with its decomposition and masks, made once and used for every checkpoint.

    Parameters
    ----------
    base : Tensor of shape (m, n)
        The base matrix in its stored type, finite, with at least one entry.
    plan : Plan
        Ranks and mask fraction.
    svd : Decomposition, optional
        Its decomposition in float64 where it has been made already.

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

    def __init__(self, base: Tensor, plan: Plan, svd: Decomposition | None = None) -> None:
        require_matrix("base", base)
        self.stored = base.detach()
        self.W = self.stored.double()
        self.plan = plan
        self.svd = svd or decompose(self.W)
        self.k, self.r = plan.ranks(min(base.shape))
        self.k = max(1, min(self.k, self.rank))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self.W.shape[0], self.W.shape[1])

    def warm(self) -> "Basis":
        """Make what is made on demand now, so that threads may share the basis."""
        if self.rank:
            _ = self.norm, self.frame, self.mask, self.low_mask
        return self

    @cached_property
    def rank(self) -> int:
        """Numerical rank."""
        return numerical_rank(self.svd)

    @cached_property
    def norm(self) -> float:
        """Frobenius norm."""
        return float(torch.linalg.vector_norm(self.W))

    @cached_property
    def frame(self) -> Frame:
        """The basis in the form tracking works in; the base must have rank 1 at least."""
        return Frame.of(self.svd)

    @cached_property
    def mask(self) -> Tensor:
        """Principal mask of the base."""
        return principal_mask(self.svd, self.r, self.plan.mask_fraction)

    @cached_property
    def low_mask(self) -> Tensor:
        """As many entries of smallest magnitude."""
        return smallest_mask(self.W, mask_size(self.plan.mask_fraction, self.W.numel()))


def numerical_rank(svd: Decomposition) -> int:
    """Count the singular values that stand above their own error."""
    floor = svd.sigma_error.clamp(min=max(len(svd.U), len(svd.V)) * EPS * float(svd.sigma[0]))
    return int((svd.sigma > floor).sum())


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
        Entries that differ by less than the rounding of the product count as equal; the smaller flat index wins.

    References
    ----------
    "The Path Not Taken", arXiv 2511.08567; "LIFT", arXiv 2506.00772.
    """
    truncated = (svd.U[:, :r] * svd.sigma[:r]) @ svd.V[:, :r].mT
    rounding = 16 * EPS * float(svd.sigma[0])  # closer entries are equal: their order is the product's noise
    return largest_mask(truncated, mask_size(fraction, truncated.numel()), rounding)


def require_matrix(what: str, W: Tensor) -> None:
    """Raise unless ``W`` is a finite floating-point matrix with entries."""
    require_weights(what, W)
    bad = bad_values(W)
    if bad:
        raise NumericalError(f"{what}: expected finite values, found {bad}.")


def require_weights(what: str, W: Tensor) -> None:
    """Raise unless ``W`` is a floating-point matrix with entries, which costs nothing to see."""
    if W.ndim != 2 or W.numel() == 0:
        raise ShapeError(f"{what}: expected a matrix with entries, found shape {tuple(W.shape)}.")
    if not W.dtype.is_floating_point:
        raise ShapeError(f"{what}: expected floating-point values, found {W.dtype}.")


def bad_values(W: Tensor) -> str:
    """Say how many entries are NaN or infinite; an empty string where none is.

    Examples
    --------
    >>> bad_values(torch.tensor([1.0, float("nan")]))
    '1 NaN'
    """
    W = W.detach()
    if torch.isfinite(W.sum(dtype=torch.float64)):
        return ""  # a sum over NaN or infinity is never finite
    nan, inf = int(torch.isnan(W).sum()), int(torch.isinf(W).sum())
    return " and ".join(f"{count} {name}" for count, name in ((nan, "NaN"), (inf, "infinite")) if count)
