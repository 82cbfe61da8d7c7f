"""One base, one checkpoint: every measure, its error, its null, and how it was made."""

import math
import statistics
from dataclasses import dataclass, field

import torch
from torch import Tensor

from driftlab.devices import exact_math
from driftlab.errors import NumericalError, ShapeError
from driftlab.spectral.basis import Basis, require_matrix, require_weights
from driftlab.spectral.exact import measure_exact
from driftlab.spectral.masks import changed_mask, count_true, iou, mask_size, random_iou, share_inside
from driftlab.spectral.measures import MEASURES, NO_DRIFT
from driftlab.spectral.nulls import null_update
from driftlab.spectral.spectrum import effective_rank, gap_at_rank, ratio
from driftlab.spectral.tracking import measure_tracked

_SLACK = 1e-6
_SLICE = 1 << 22
SMALLEST = 128
"""Short side below which a decomposition costs no more than tracking."""
_SUPPORT = ("mask_update_iou", "mask_update_overlap", "low_mask_overlap")
_NULL_TOLERANCE = 30.0  # a null's error may be this many times the tolerance: it is compared, not quoted


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
        What an update of the same size would show anyway, median over the draws.
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
        The base, decomposed once, with the plan of what to measure.
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
        require_weights("checkpoint", new)
        D = difference(basis.stored, new)
        size = frobenius(D)
        if not math.isfinite(size):
            require_matrix("checkpoint", new)
        return _measure(basis, D, size, _changed(basis.stored, new, D), key)


def measure_adapter(basis: Basis, B: Tensor, A: Tensor, scale: float, key: str = "") -> Drift:
    r"""Measure a low-rank update :math:`W_1 = W_0 + s\,BA`, as LoRA adapters hold it, without multiplying it out first.

    The products with the base's vectors cost the rank of the adapter instead of the size of the matrix.

    Parameters
    ----------
    basis : Basis
        The base, decomposed once.
    B : Tensor of shape (m, r)
    A : Tensor of shape (r, n)
    scale : float
        s; α/r for LoRA, α/√r for rank-stabilised LoRA.
    key : str, default ""
        As for :func:`measure`.

    Raises
    ------
    ShapeError
        If the factors do not fit the base or each other.
    NumericalError
        If they hold NaN or infinity.

    References
    ----------
    E. Hu et al., "LoRA", arXiv 2106.09685; D. Kalajdzievski, arXiv 2312.03732.
    """
    if B.ndim != 2 or A.ndim != 2 or B.shape[1] != A.shape[0] or (B.shape[0], A.shape[1]) != basis.shape:
        raise ShapeError(
            f"Adapter: expected B of shape ({basis.shape[0]}, r) and A of shape (r, {basis.shape[1]}), found "
            f"{tuple(B.shape)} and {tuple(A.shape)}."
        )
    require_matrix("adapter B", B)
    require_matrix("adapter A", A)
    with exact_math():
        B, A = scale * B.double(), A.double()
        D = B @ A
        if not bool(D.any()):
            return _identical(basis)
        return _measure(basis, D, frobenius(D), changed_mask(basis.stored, basis.W + D), key, (B, A))


def _measure(
    basis: Basis, D: Tensor, size: float, changed: Tensor, key: str, factors: tuple[Tensor, Tensor] | None = None
) -> Drift:
    values = _of_base(basis) | support_measures(basis, changed)
    structural, errors, method = _structural(basis, D, basis.plan.tolerance, factors)
    values |= structural
    values["rel_frobenius"] = ratio(size, basis.norm)
    _check_bounds(values, errors)
    nulls = _nulls(basis, D, values["update_density"], key)
    return Drift(_select(basis, values), errors, nulls, method, basis.k, basis.r, _reason(basis, values))


def difference(base: Tensor, new: Tensor) -> Tensor:
    """Return the update in the narrowest type that holds it: float32 for two 16-bit matrices, else float64.

    It is exact unless two values lie many powers of two apart, where the smaller one is below the last bit.
    """
    wide = torch.float32 if base.dtype.itemsize == new.dtype.itemsize == 2 else torch.float64
    return new.to(wide, copy=True).sub_(base)


def support_measures(basis: Basis, changed: Tensor) -> dict[str, float]:
    """Measures of which entries changed."""
    plan = basis.plan
    density = count_true(changed) / changed.numel()
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


def _changed(base: Tensor, new: Tensor, D: Tensor) -> Tensor:
    """Mark changed entries; for two matrices of one 16-bit type a difference of 0 says the same and is at hand."""
    if base.dtype == new.dtype and base.dtype in (torch.bfloat16, torch.float16):
        return D.bool()
    return changed_mask(base, new)


def _structural(
    basis: Basis, D: Tensor, tolerance: float, factors: tuple[Tensor, Tensor] | None = None
) -> tuple[dict[str, float], dict[str, float], str]:
    """Track where the plan allows it and every error stays within the tolerance, else decompose."""
    if basis.plan.method == "auto" and min(basis.shape) >= SMALLEST and basis.rank:
        values, errors = measure_tracked(basis, D, factors)
        if all(within(name, values, error, tolerance) for name, error in errors.items()):
            return values, errors, "tracked"
    values, errors = measure_exact(basis, basis.W + D)
    return values, errors, "exact"


def within(name: str, values: dict[str, float], error: float, tolerance: float) -> bool:
    """Whether the error of a measure is within the relative tolerance.

    A median angle may be zero but for rounding while the largest is not (an update of low rank): it is held to a
    hundredth of the largest.
    """
    scale = abs(values.get(name, math.nan))
    if name.startswith("median_angle"):
        scale = max(scale, 0.01 * values.get(name.replace("median", "max"), math.nan))
    return math.isfinite(error) and error <= tolerance * scale


def _nulls(basis: Basis, D: Tensor, density: float, key: str) -> dict[str, float]:
    """Measure nulls of the update; of several draws the median, above which chance puts the value half the time."""
    plan = basis.plan
    if plan.null == "none" or not basis.rank:
        return {}
    draws = []
    for draw in range(plan.null_draws):
        fake = null_update(D, plan.null, plan.seed, f"{key}\0{draw}")
        values, _, _ = _structural(basis, fake, _NULL_TOLERANCE * plan.tolerance)
        if plan.null == "permute":
            values |= _permuted_support(basis, density, f"{key}\0{draw}")
        draws.append(values)
    names = [name for name, measure in MEASURES.items() if plan.null in measure.nulls and plan.wants(name)]
    return {name: statistics.median(draw.get(name, math.nan) for draw in draws) for name in names}


def _permuted_support(basis: Basis, density: float, key: str) -> dict[str, float]:
    """Support measures of as many changed entries in random places."""
    count = round(density * basis.W.numel())
    ones = torch.zeros(basis.W.numel(), device=basis.W.device)
    ones[:count] = 1.0
    changed = null_update(ones, "permute", basis.plan.seed, key).bool().reshape(basis.W.shape)
    values = support_measures(basis, changed)
    return {name: values[name] for name in _SUPPORT if name in values}


def frobenius(D: Tensor) -> float:
    """Return the Frobenius norm, squares summed in float64 slice by slice."""
    flat = D.flatten()
    slices = (flat[i : i + _SLICE].double() for i in range(0, flat.numel(), _SLICE))
    return math.sqrt(sum(float(torch.dot(part, part)) for part in slices))


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


def _reason(basis: Basis, values: dict[str, float]) -> str:
    """Say why measures are missing, where they are."""
    fraction, numel = basis.plan.mask_fraction, basis.W.numel()
    if not basis.rank:
        return "the base is zero: relative measures are undefined"
    if math.isnan(values.get("effective_rank_new", 0.0)):
        return "the checkpoint is zero: angles and masks are undefined"
    if basis.plan.wants("max_angle_left_deg") and "max_angle_left_deg" not in values:
        return f"the checkpoint's rank is below the angle rank {basis.k}: angles are undefined"
    if basis.plan.wants("mask_overlap") and not mask_size(fraction, numel):
        return f"the mask fraction {fraction} of {numel} entries is none: mask_overlap is undefined"
    return ""


def _select(basis: Basis, values: dict[str, float]) -> dict[str, float]:
    return {name: values.get(name, math.nan) for name in MEASURES if basis.plan.wants(name)}


def _check_bounds(values: dict[str, float], errors: dict[str, float]) -> None:
    """Hold Mirsky's bound on the spectrum, which costs nothing."""
    shift, size = values.get("nss", math.nan), values["rel_frobenius"]
    if shift > size * (1 + _SLACK) + errors.get("nss", 0.0):
        raise NumericalError(f"Self-check failed: nss {shift:.6g} exceeds rel_frobenius {size:.6g} (Mirsky's bound).")
