"""Measures that need singular values and norms only."""

import math

import torch
from torch import Tensor

from driftlab.errors import ShapeError


def nss(base: Tensor, new: Tensor) -> float:
    r"""Normalised spectral shift, :math:`\|\sigma(W_1)-\sigma(W_0)\|_2 / \|\sigma(W_0)\|_2`.

    Parameters
    ----------
    base, new : Tensor of shape (d,)
        All singular values of the base matrix and of the new one, in any order; they are compared in descending
        order.

    Returns
    -------
    float
        Dimensionless, in [0, ``rel_frobenius``] (Mirsky); 0 for no drift. NaN where the base is zero.

    Raises
    ------
    ShapeError
        If the two are not vectors of one length.

    References
    ----------
    "Denser ≠ Better", arXiv 2607.01763, appendix A.8; "The Path Not Taken", arXiv 2511.08567.
    L. Mirsky, "Symmetric gauge functions and unitarily invariant norms", Q. J. Math. 11, 1960.

    Examples
    --------
    >>> nss(torch.tensor([3.0, 4.0]), torch.tensor([4.5, 3.0]))
    0.1
    """
    _check_spectra(base, new)
    base, new = base.double().sort(descending=True).values, new.double().sort(descending=True).values
    return ratio(float((new - base).norm()), float(base.norm()))


def isospectral_ratio(base: Tensor, new: Tensor, update_norm: float) -> float:
    r"""Share of an update that moves the spectrum, :math:`\|\sigma(W_1)-\sigma(W_0)\|_2 / \|D\|_F`.

    Parameters
    ----------
    base, new : Tensor of shape (d,)
        All singular values of the base matrix and of the new one.
    update_norm : float
        :math:`\|D\|_F` of the update :math:`D = W_1 - W_0`.

    Returns
    -------
    float
        Dimensionless, in [0, 1]; 0 for a pure rotation. NaN where there is no update.

    Raises
    ------
    ShapeError
        If the two are not vectors of one length.

    References
    ----------
    arXiv 2607.19331.

    Examples
    --------
    >>> isospectral_ratio(torch.tensor([3.0, 4.0]), torch.tensor([4.5, 3.0]), 1.0)
    0.5
    """
    _check_spectra(base, new)
    base, new = base.double().sort(descending=True).values, new.double().sort(descending=True).values
    return share(float((new - base).norm()), update_norm)


def stable_rank(frobenius: float, spectral: float) -> float:
    r"""Stable rank of a matrix from its two norms, :math:`\|D\|_F^2 / \|D\|_2^2`.

    Parameters
    ----------
    frobenius, spectral : float
        The Frobenius and the spectral norm.

    Returns
    -------
    float
        Dimensionless, in [1, d]; 1 for a rank-one matrix. NaN for the zero matrix, where it is undefined.

    References
    ----------
    M. Rudelson and R. Vershynin, "Sampling from large matrices", J. ACM 54(4), 2007; used on updates by
    arXiv 2606.07082.

    Examples
    --------
    >>> stable_rank(2.0, 1.0)
    4.0
    """
    return ratio(frobenius, spectral) ** 2


def effective_rank(sigma: Tensor) -> float:
    r"""Effective rank, :math:`\exp(-\sum_i p_i \ln p_i)` with :math:`p_i = \sigma_i / \sum_j \sigma_j`.

    Parameters
    ----------
    sigma : Tensor of shape (d,)
        Singular values in any order.

    Returns
    -------
    float
        Dimensionless, in [1, d]; d for a flat spectrum. NaN for the zero matrix.

    Raises
    ------
    ShapeError
        If ``sigma`` is not a vector.

    References
    ----------
    O. Roy and M. Vetterli, "The effective rank", EUSIPCO 2007.

    Examples
    --------
    >>> round(effective_rank(torch.tensor([2.0, 2.0, 0.0])), 12)
    2.0
    """
    if sigma.ndim != 1:
        raise ShapeError(f"sigma: expected a vector of singular values, found shape {tuple(sigma.shape)}.")
    total = sigma.double().sum()
    if total == 0:
        return math.nan
    p = sigma.double() / total
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))


def gap_at_rank(sigma: Tensor, k: int) -> float:
    r"""Relative gap below the k-th singular value, :math:`(\sigma_k-\sigma_{k+1})/\sigma_k`.

    The top-k subspace, and so every angle to it, is meaningless where this is tiny.

    Parameters
    ----------
    sigma : Tensor of shape (d,)
        Singular values, descending.
    k : int
        Rank of the subspace, 1 ≤ k ≤ d. With k = d there is nothing below and the gap is 1.

    Returns
    -------
    float
        Dimensionless, in [0, 1]. NaN where :math:`\sigma_k = 0`.

    Raises
    ------
    ShapeError
        If k is outside 1 … d.

    References
    ----------
    P.-Å. Wedin, "Perturbation bounds in connection with singular value decomposition", BIT 12, 1972.

    Examples
    --------
    >>> gap_at_rank(torch.tensor([4.0, 3.0, 1.0]), 1)
    0.25
    """
    if sigma.ndim != 1 or not 1 <= k <= len(sigma):
        raise ShapeError(f"rank: expected 1 to {sigma.numel()}, found {k}.")
    here = float(sigma[k - 1])
    below = float(sigma[k]) if k < len(sigma) else 0.0
    return ratio(here - below, here)


def ratio(numerator: float, denominator: float) -> float:
    """Divide; NaN where the denominator is zero."""
    return numerator / denominator if denominator else math.nan


def share(part: float, whole: float) -> float:
    """Divide a part by its whole: never above 1 by rounding; NaN where the whole is zero."""
    value = ratio(part, whole)
    return 1.0 if value > 1 else value


def _check_spectra(base: Tensor, new: Tensor) -> None:
    if base.ndim != 1 or base.shape != new.shape:
        raise ShapeError(
            f"Spectra: expected two vectors of one length, found shapes {tuple(base.shape)} and {tuple(new.shape)}."
        )
