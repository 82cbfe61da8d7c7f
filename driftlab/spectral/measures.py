"""The registry of measures, what a scan is asked to measure, and the presets of the literature."""

import math
from dataclasses import dataclass, field

from driftlab.errors import UsageError

PAPER = "arXiv 2607.01763"
PATH = "arXiv 2511.08567"


@dataclass(frozen=True)
class Measure:
    """A named number about one matrix.

    Attributes
    ----------
    name : str
        Column name.
    unit : str
        ``1`` for dimensionless.
    low, high : str
        Range.
    no_drift : str
        Its value where nothing moved.
    source : str
        Where it was defined.
    summary : str
        What it says.
    nulls : tuple of str
        The nulls that change it; the others leave it as it is by construction.
    """

    name: str
    unit: str
    low: str
    high: str
    no_drift: str
    source: str
    summary: str
    nulls: tuple[str, ...] = ()


_BOTH = ("sign", "permute")
_ALL = (
    Measure("nss", "1", "0", "rel_frobenius", "0", f"{PAPER} A.8, {PATH}", "normalised spectral shift", _BOTH),
    Measure(
        "max_angle_left_deg", "degree", "0", "90", "0", f"{PAPER} A.11", "largest principal angle, output side", _BOTH
    ),
    Measure("max_angle_right_deg", "degree", "0", "90", "0", PATH, "largest principal angle, input side", _BOTH),
    Measure("median_angle_left_deg", "degree", "0", "90", "0", PATH, "median principal angle, output side", _BOTH),
    Measure("median_angle_right_deg", "degree", "0", "90", "0", PATH, "median principal angle, input side", _BOTH),
    Measure("gap_at_rank", "1", "0", "1", "-", "Wedin 1972", "relative gap of the base below the angle rank"),
    Measure(
        "mask_overlap", "1", "0", "1", "1", f"{PAPER} A.12", "IoU of the principal masks of base and checkpoint", _BOTH
    ),
    Measure("update_density", "1", "0", "1", "0", f"{PATH} Def. 2.2", "share of entries changed in bf16"),
    Measure("update_sparsity", "1", "0", "1", "1", f"{PATH} Def. 2.2", "1 - update_density"),
    Measure(
        "mask_update_iou",
        "1",
        "0",
        "1",
        "0",
        f"{PAPER} A.14",
        "IoU of principal mask and changed entries",
        ("permute",),
    ),
    Measure(
        "mask_update_overlap", "1", "0", "1", "-", PATH, "share of changed entries on the principal mask", ("permute",)
    ),
    Measure(
        "low_mask_overlap", "1", "0", "1", "-", PATH, "share of changed entries on the smallest weights", ("permute",)
    ),
    Measure(
        "mask_update_iou_random", "1", "0", "1", "0", "derived", "mask_update_iou of a random update of this density"
    ),
    Measure("rel_frobenius", "1", "0", "inf", "0", "arXiv 2509.04259", "Frobenius norm of the update over the base's"),
    Measure(
        "rel_spectral", "1", "0", "inf", "0", "arXiv 2509.04259", "spectral norm of the update over the base's", _BOTH
    ),
    Measure(
        "isospectral_ratio",
        "1",
        "0",
        "1",
        "-",
        "arXiv 2607.19331",
        "share of the update that moves the spectrum",
        _BOTH,
    ),
    Measure("stable_rank_update", "1", "1", "d", "-", "arXiv 2606.07082", "stable rank of the update", _BOTH),
    Measure("effective_rank_base", "1", "1", "d", "-", "Roy & Vetterli 2007", "effective rank of the base"),
    Measure(
        "effective_rank_new", "1", "1", "d", "base's", "Roy & Vetterli 2007", "effective rank of the checkpoint", _BOTH
    ),
    Measure(
        "subspace_similarity", "1", "0", "1", "1", "arXiv 2106.09685", "mean squared cosine of the left angles", _BOTH
    ),
    Measure(
        "principal_energy", "1", "0", "1", "-", f"after {PATH}", "share of the update in the principal subspaces", _BOTH
    ),
    Measure(
        "intruder_dimensions",
        "count",
        "0",
        "10",
        "0",
        "arXiv 2410.21228",
        "top-10 vectors unlike any of the base",
        _BOTH,
    ),
)
MEASURES: dict[str, Measure] = {measure.name: measure for measure in _ALL}

NO_DRIFT: dict[str, float] = {
    "nss": 0.0,
    "max_angle_left_deg": 0.0,
    "max_angle_right_deg": 0.0,
    "median_angle_left_deg": 0.0,
    "median_angle_right_deg": 0.0,
    "mask_overlap": 1.0,
    "update_density": 0.0,
    "update_sparsity": 1.0,
    "mask_update_iou": 0.0,
    "mask_update_overlap": math.nan,
    "low_mask_overlap": math.nan,
    "mask_update_iou_random": 0.0,
    "rel_frobenius": 0.0,
    "rel_spectral": 0.0,
    "isospectral_ratio": math.nan,
    "stable_rank_update": math.nan,
    "subspace_similarity": 1.0,
    "principal_energy": math.nan,
    "intruder_dimensions": 0.0,
}
"""Values for a matrix whose bytes equal the base's; the base's own numbers come from its basis."""

ESTIMATED = (
    "nss",
    "max_angle_left_deg",
    "max_angle_right_deg",
    "median_angle_left_deg",
    "median_angle_right_deg",
    "mask_overlap",
    "rel_spectral",
)
"""Measures that carry an error estimate of their own, in the column ``NAME_error``."""


@dataclass(frozen=True)
class Plan:
    """What to measure and how; stored with the results.

    Attributes
    ----------
    angle_rank : int or None
        k of the angles; None is min(128, d // 4). Capped at d // 2: at k = m an angle is 0 whatever happens.
    mask_rank : int
        r of the principal masks, capped at d // 2.
    mask_fraction : float
        f, their share of the entries, in (0, 1).
    measures : tuple of str
        Names from :data:`MEASURES`.
    method : str
        ``auto`` (tracked where its error estimate allows, else exact) or ``exact``.
    tolerance : float
        Largest relative error estimate a tracked value may have.
    null : str
        ``sign``, ``permute`` or ``none``.
    null_draws : int
        Draws of which a null value is the median; an odd number.
    seed : int
        Seed of the nulls.
    """

    angle_rank: int | None = None
    mask_rank: int = 64
    mask_fraction: float = 0.1
    measures: tuple[str, ...] = field(default=tuple(MEASURES))
    method: str = "auto"
    tolerance: float = 1e-3
    null: str = "sign"
    null_draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.measures if name not in MEASURES]
        if unknown:
            raise UsageError(f"Measure {unknown[0]!r} is unknown.", "`driftlab svd --list-measures` shows them all.")
        _require("rank", self.angle_rank is None or self.angle_rank >= 1, "at least 1", self.angle_rank)
        _require("mask rank", self.mask_rank >= 1, "at least 1", self.mask_rank)
        _require("mask fraction", 0 < self.mask_fraction < 1, "a number between 0 and 1", self.mask_fraction)
        _require("method", self.method in ("auto", "exact"), "auto or exact", self.method)
        _require("tolerance", 0 < self.tolerance < 1, "a number between 0 and 1", self.tolerance)
        _require("null", self.null in ("sign", "permute", "none"), "sign, permute or none", self.null)
        _require("null draws", self.null_draws >= 1, "at least 1", self.null_draws)
        _require("null draws", self.null_draws % 2 == 1, "an odd number", self.null_draws)

    def ranks(self, d: int) -> tuple[int, int]:
        """Return (k, r) for a matrix whose smaller side is ``d``.

        Examples
        --------
        >>> Plan().ranks(576)
        (128, 64)
        >>> Plan(angle_rank=512).ranks(192)
        (96, 64)
        """
        half = max(1, d // 2)
        k = min(128, max(1, d // 4)) if self.angle_rank is None else self.angle_rank
        return min(k, half), min(self.mask_rank, half)

    def wants(self, *names: str) -> bool:
        """Whether any of these measures is asked for."""
        return any(name in self.measures for name in names)


PRESETS: dict[str, dict[str, object]] = {
    "2607.01763": {"angle_rank": None, "mask_rank": 64, "mask_fraction": 0.1},
    "2606.07082": {"angle_rank": 512, "mask_rank": 64, "mask_fraction": 0.5},
}
"""Settings of published work. For 2607.01763 the ranks and the fraction are inferred: the paper does not state them."""


def _require(what: str, valid: bool, expected: str, found: object) -> None:
    if not valid:
        raise UsageError(f"The {what}: expected {expected}, found {found!r}.")
