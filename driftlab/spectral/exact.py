"""All measures of one pair of matrices from two full decompositions in float64."""

import math

import torch
from torch import Tensor

from driftlab.errors import NumericalError
from driftlab.spectral.basis import Basis, numerical_rank, principal_mask
from driftlab.spectral.decomposition import EPS, Decomposition, decompose
from driftlab.spectral.masks import iou
from driftlab.spectral.spectrum import effective_rank, isospectral_ratio, nss, ratio, stable_rank
from driftlab.spectral.subspaces import (
    intruder_dimensions,
    principal_angles_deg,
    principal_energy,
    subspace_similarity,
)


def measure_exact(basis: Basis, new: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """Measure every structural drift number of ``new`` against the base.

    Parameters
    ----------
    basis : Basis
        The base, decomposed.
    new : Tensor of shape (m, n), float64
        The new matrix, finite.

    Returns
    -------
    values, errors : dict of str to float
        Measures by name, and for the estimated ones how far they can be off, in their own unit.
    """
    plan, svd0 = basis.plan, basis.svd
    D = new - basis.W
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    norm = float(torch.linalg.vector_norm(D))
    if plan.wants("rel_spectral", "stable_rank_update"):
        spectral = spectral_norm(D)
        values["rel_spectral"] = ratio(spectral, float(svd0.sigma[0]))
        values["stable_rank_update"] = stable_rank(norm, spectral)
        errors["rel_spectral"] = 4 * EPS * len(svd0.sigma) * values["rel_spectral"]
    if plan.wants("principal_energy"):
        core = svd0.U[:, : basis.k].mT @ D @ svd0.V[:, : basis.k]
        values["principal_energy"] = principal_energy(core, norm)
    svd1 = decompose(new)
    values |= {
        "nss": nss(svd0.sigma, svd1.sigma),
        "isospectral_ratio": isospectral_ratio(svd0.sigma, svd1.sigma, norm),
        "effective_rank_new": effective_rank(svd1.sigma),
    }
    off = torch.linalg.vector_norm(torch.stack([svd0.sigma_error, svd1.sigma_error]))
    errors["nss"] = ratio(float(off), basis.norm)
    if basis.rank and numerical_rank(svd1):
        _angles(basis, svd1, values, errors)
        values["intruder_dimensions"] = _intruders(basis, svd1)
        if plan.wants("mask_overlap"):
            values["mask_overlap"] = iou(basis.mask, principal_mask(svd1, basis.r, plan.mask_fraction))
            errors["mask_overlap"] = float(_closed(svd0, basis.r) or _closed(svd1, basis.r))
    return values, errors


def _closed(svd: Decomposition, r: int) -> bool:
    """Whether the gap below the r-th value is closed: the truncation, and so the mask, could be any other."""
    return r < len(svd.sigma) and bool(svd.sigma[r - 1] - svd.sigma[r] <= 2 * svd.sigma_error[r - 1])


def _intruders(basis: Basis, svd1: Decomposition) -> int:
    """Count among the ten leading vectors; those without a singular value of their own are LAPACK's choice."""
    top = min(10, numerical_rank(svd1))
    return intruder_dimensions(basis.svd.U[:, : basis.rank].mT @ svd1.U[:, :top])


def _angles(basis: Basis, svd1: Decomposition, values: dict[str, float], errors: dict[str, float]) -> None:
    svd0, k = basis.svd, basis.k
    if k > numerical_rank(svd1):
        return  # the new matrix has lost rank: its top-k subspace is not determined
    error = min(90.0, angle_floor_deg(svd0, k) + angle_floor_deg(svd1, k))
    for side, before, after in (("left", svd0.U, svd1.U), ("right", svd0.V, svd1.V)):
        angles = _finite_angles(before[:, :k], after[:, :k])
        values[f"max_angle_{side}_deg"] = float(angles[-1])
        values[f"median_angle_{side}_deg"] = float(angles.median())
        errors |= dict.fromkeys((f"max_angle_{side}_deg", f"median_angle_{side}_deg"), error)
    values["subspace_similarity"] = subspace_similarity(svd0.U[:, :k], svd1.U[:, :k])


def _finite_angles(before: Tensor, after: Tensor) -> Tensor:
    try:
        angles = principal_angles_deg(before, after)
        found = "NaN"
    except RuntimeError as error:  # how torch reports a failed convergence
        angles, found = before.new_full((1,), math.nan), str(error)
    if not torch.isfinite(angles).all():
        raise NumericalError(f"Principal angles of {tuple(before.shape)} bases: expected finite values, found {found}.")
    return angles


def angle_floor_deg(svd: Decomposition, k: int) -> float:
    """Return the rounding error of one computed top-k subspace in degrees, by Wedin's bound: error over gap."""
    if k >= len(svd.sigma):
        return math.degrees(EPS * k)
    gap = float(svd.sigma[k - 1] - svd.sigma[k])
    error = float(svd.sigma_error[k - 1])
    return min(90.0, math.degrees(ratio(error, gap))) if gap > 0 else 90.0


def spectral_norm(D: Tensor) -> float:
    """Largest singular value, from the Gram matrix of the smaller side scaled to entries of at most 1."""
    scale = float(D.abs().max())
    if scale == 0:
        return 0.0
    thin = D / scale if D.shape[0] <= D.shape[1] else D.mT / scale
    try:
        square = float(torch.linalg.eigvalsh(thin @ thin.mT)[-1])
    except RuntimeError:
        square = math.nan
    if square > 0:
        return scale * math.sqrt(square)
    return float(decompose(D).sigma[0])  # its routes are checked
