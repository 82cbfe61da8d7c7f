"""All measures of one update by tracking: a few matrix products instead of a new decomposition, errors included."""

import math

import torch
from torch import Tensor

from driftlab.spectral.basis import Basis
from driftlab.spectral.masks import count_true, iou, largest_of, mask_size
from driftlab.spectral.norms import spectral_norm
from driftlab.spectral.spectrum import effective_rank, isospectral_ratio, nss, ratio, stable_rank
from driftlab.spectral.subspaces import intruder_dimensions, principal_energy
from driftlab.spectral.tracked_spectrum import spectrum
from driftlab.spectral.tracked_subspace import Angles, Subspace, far_angles, near_angles, subspace
from driftlab.spectral.update import WINDOW, Update, Window

Values = dict[str, float]
_UNMIXED = 0.25  # squared mixing of a level with all others below which its vector stays near its own
_STRIDE, _SAMPLED = 7, 300_000  # every seventh entry of a matrix larger than this tells the density well enough


def measure_tracked(basis: Basis, D: Tensor, factors: tuple[Tensor, Tensor] | None = None) -> tuple[Values, Values]:
    """Measure one update from the base's decomposition.

    Parameters
    ----------
    basis : Basis
        The base, of rank at least 1.
    D : Tensor of shape (m, n), float32 or float64
        The update.
    factors : (Tensor of shape (m, r), Tensor of shape (r, n)), optional
        Two matrices whose product is D.

    Returns
    -------
    values, errors : dict of str to float
        Measures by name, and how far the estimated ones can be off in their own unit; an infinite error says that
        tracking does not hold.
    """
    plan, frame = basis.plan, basis.frame
    update = Update(frame, frame.turn(D), frame.turn_factors(*factors) if factors else None)
    values: Values = {}
    errors: Values = {}
    if plan.wants("nss", "isospectral_ratio", "effective_rank_new"):
        _spectrum(update, plan.tolerance, values, errors)
    if plan.wants("rel_spectral", "stable_rank_update"):
        top, error = spectral_norm(update.second, update.row_energy, plan.tolerance)
        values["rel_spectral"] = ratio(top, float(frame.sigma[0]))
        errors["rel_spectral"] = ratio(error, float(frame.sigma[0]))
        values["stable_rank_update"] = stable_rank(update.norm, top)
    if plan.wants("principal_energy"):
        values["principal_energy"] = principal_energy(update.E[: basis.k, : basis.k], update.norm)
    if plan.wants("intruder_dimensions"):
        values["intruder_dimensions"] = _intruders(update, min(10, basis.k))
    wanted = [f"{which}_angle_{side}_deg" for which in ("max", "median") for side in ("left", "right")]
    if plan.wants("subspace_similarity", *wanted):
        _subspaces(update, basis.k, plan.tolerance, values, errors)
    if plan.wants("mask_overlap"):
        _mask(basis, update, values, errors)
    return values, errors


def _spectrum(update: Update, tolerance: float, values: Values, errors: Values) -> None:
    sigma = update.frame.sigma
    try:
        new, error = spectrum(update, tolerance)
    except RuntimeError:  # an eigenvalue problem that does not converge: the expansion has broken down
        error = math.inf
    if not math.isfinite(error):
        errors["nss"] = math.inf
        return
    values["nss"] = nss(sigma, new)
    values["isospectral_ratio"] = isospectral_ratio(sigma, new, update.norm)
    values["effective_rank_new"] = effective_rank(new)
    errors["nss"] = error * values["nss"]


def _subspaces(update: Update, k: int, tolerance: float, values: Values, errors: Values) -> None:
    near, far = ("right", "left") if update.frame.tall else ("left", "right")
    try:
        space = subspace(update, k, tolerance) if k < len(update.level) else _everything(update, k)
        sides = {near: near_angles(update, space), far: far_angles(update, space)}
    except RuntimeError:  # a Cholesky factor that does not exist: the expansion has broken down
        errors |= {f"max_angle_{side}_deg": math.inf for side in (near, far)}
        return
    for side, angles in sides.items():
        _record(side, angles, values, errors)
    values["subspace_similarity"] = 1.0 - float(sides["left"].sines.square().mean())


def _everything(update: Update, k: int) -> Subspace:
    """Return the short side's whole space: nothing can turn."""
    eye = torch.eye(k, dtype=torch.float32, device=update.X.device)
    return Subspace(eye, torch.zeros_like(eye))


def _record(side: str, angles: Angles, values: Values, errors: Values) -> None:
    middle = (len(angles.sines) - 1) // 2
    for which, index, error in (("max", -1, angles.largest_error), ("median", middle, angles.median_error)):
        sine = min(1.0, float(angles.sines[index]))
        name = f"{which}_angle_{side}_deg"
        values[name] = math.degrees(math.asin(sine))
        slope = math.sqrt(max(1.0 - sine**2, 1e-12))
        errors[name] = math.degrees(error / slope) if math.isfinite(error) else math.inf


def _intruders(update: Update, top: int) -> int:
    """Count from the leading window; distant base vectors have small shares in its vectors."""
    if float(update.mixed[:top].square().sum(1).max()) < _UNMIXED:
        return 0
    stop = min(WINDOW, len(update.level))
    vectors = torch.linalg.eigh(Window.of(update, 0, stop).M).eigenvectors.flip(1)
    return intruder_dimensions(vectors[:, :top])


def _mask(basis: Basis, update: Update, values: Values, errors: Values) -> None:
    r"""Compare principal masks; the new one is that of the projection of :math:`W_1` on its top-r subspace."""
    frame, r = update.frame, basis.r
    try:
        space = subspace(update, r, basis.plan.tolerance) if r < len(update.level) else _everything(update, r)
        lower = torch.linalg.cholesky((space.L.mT @ space.L).double()).float()
    except RuntimeError:
        errors["mask_overlap"] = math.inf
        return
    Z = torch.linalg.solve_triangular(lower, space.L.mT, upper=False)
    near, far = frame.U @ Z.mT, torch.addmm(Z @ update.X, Z * update.s, frame.V.mT)
    magnitude = (far.mT @ near.mT if frame.tall else near @ far).abs_()
    count = mask_size(basis.plan.mask_fraction, magnitude.numel())
    mask, threshold = largest_of(magnitude, count)
    values["mask_overlap"] = iou(basis.mask, mask)
    errors["mask_overlap"] = _mask_error(update, space, magnitude, threshold) / count


def _mask_error(update: Update, space: Subspace, magnitude: Tensor, threshold: float) -> float:
    """Estimate how many entries lie within their own error of the threshold, at least one; counted on a sample.

    What the subspace is ``missing`` turns the projection by missing · σ, spread evenly over the entries; float32
    rounding comes on top.
    """
    top = update.s[: space.L.shape[1]]
    still = float((space.missing * top).double().norm()) + 3e-7 * float(top.norm())
    if not math.isfinite(still):
        return math.inf
    width = still / math.sqrt(magnitude.numel())
    stride = _STRIDE if magnitude.numel() > _SAMPLED else 1
    sample = magnitude.view(-1)[::stride]
    close = stride * count_true((sample - threshold).abs_() < width)
    return 2.0 * max(close, 1)
