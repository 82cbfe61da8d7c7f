"""One base, one checkpoint: every measure, its error, its null, and how it was made."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from driftlab.devices import exact_math
from driftlab.errors import ShapeError
from driftlab.spectral.basis import Basis, require_matrix
from driftlab.spectral.exact import measure_exact
from driftlab.spectral.masks import changed_mask, iou, random_iou, share_inside
from driftlab.spectral.measures import MEASURES, NO_DRIFT
from driftlab.spectral.spectrum import effective_rank, gap_at_rank, ratio

_SLACK = 1e-9


@dataclass(frozen=True)
class Drift:
    """The drift of one matrix.

    Attributes
    ----------
    values : dict of str to float
        By measure name; NaN where undefined.
    errors : dict of str to float
        How far an estimated value can be off, in its own unit.
    nulls : dict of str to float
        What an update of the same size would show anyway, mean over the draws.
    method : str
        ``identical``, ``tracked`` or ``exact``.
    angle_rank, mask_rank : int
        The k and r used.
    reason : str
        Why a value is missing, where one is.
    """

    values: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)
    nulls: dict[str, float] = field(default_factory=dict)
    method: str = "exact"
    angle_rank: int = 0
    mask_rank: int = 0
    reason: str = ""


def measure(basis: Basis, new: Tensor, key: str = "") -> Drift:
    """Measure one checkpoint's matrix against its base.

    Parameters
    ----------
    basis : Basis
        The base, decomposed once.
    new : Tensor of shape (m, n)
        The checkpoint's matrix in its stored type, on the basis's device.
    key : str, default ""
        Names the null's random numbers, so that they do not depend on the order of the work.

    Raises
    ------
    ShapeError
        If the shapes differ.
    NumericalError
        If ``new`` holds NaN or infinity, or a self-check fails.

    Examples
    --------
    >>> from driftlab.spectral import Plan
    >>> base = torch.diag(torch.tensor([5.0, 4.0, 1.0, 0.5]))
    >>> drift = measure(Basis(base, Plan(null="none")), 1.01 * base)
    >>> round(drift.values["nss"], 6), drift.values["mask_overlap"]
    (0.01, 1.0)
    """
    if new.shape != basis.stored.shape:
        raise ShapeError(f"Matrices: expected shape {basis.shape}, found {tuple(new.shape)}.")
    with exact_math():
        if new.dtype == basis.stored.dtype and torch.equal(new, basis.stored):
            return _identical(basis)
        require_matrix("checkpoint", new)
        values = _of_base(basis) | support_measures(basis, new)
        wide = new.double()
        structural, errors = measure_exact(basis, wide)
        values |= structural
        values["rel_frobenius"] = ratio(float(torch.linalg.vector_norm(wide - basis.W)), basis.norm)
        _check_bounds(values, errors)
    reason = "" if basis.rank else "the base is zero: relative measures are undefined"
    return Drift(_select(basis, values), errors, {}, "exact", basis.k, basis.r, reason)


def support_measures(basis: Basis, new: Tensor) -> dict[str, float]:
    """Measures of which entries changed, from the stored values alone."""
    plan = basis.plan
    changed = changed_mask(basis.stored, new)
    density = float(torch.count_nonzero(changed)) / changed.numel()
    values = {
        "update_density": density,
        "update_sparsity": 1.0 - density,
        "mask_update_iou_random": random_iou(plan.mask_fraction, density),
    }
    if plan.wants("mask_update_iou", "mask_update_overlap") and basis.rank:
        values["mask_update_iou"] = iou(basis.mask, changed)
        values["mask_update_overlap"] = share_inside(changed, basis.mask)
    if plan.wants("low_mask_overlap"):
        values["low_mask_overlap"] = share_inside(changed, basis.low_mask)
    return values


def _of_base(basis: Basis) -> dict[str, float]:
    return {
        "gap_at_rank": gap_at_rank(basis.svd.sigma, basis.k),
        "effective_rank_base": effective_rank(basis.svd.sigma),
    }


def _identical(basis: Basis) -> Drift:
    """Equal bytes mean no drift exactly, without any work on the checkpoint."""
    values = NO_DRIFT | _of_base(basis)
    values["effective_rank_new"] = values["effective_rank_base"]
    return Drift(_select(basis, values), {}, {}, "identical", basis.k, basis.r)


def _select(basis: Basis, values: dict[str, float]) -> dict[str, float]:
    return {name: values.get(name, math.nan) for name in MEASURES if basis.plan.wants(name)}


def _check_bounds(values: dict[str, float], errors: dict[str, float]) -> None:
    """Hold the free bounds: Mirsky's for the spectrum."""
    from driftlab.errors import NumericalError

    shift, size = values.get("nss", math.nan), values["rel_frobenius"]
    if shift > size * (1 + _SLACK) + errors.get("nss", 0.0):
        raise NumericalError(f"Self-check failed: nss {shift:.6g} exceeds rel_frobenius {size:.6g} (Mirsky's bound).")
