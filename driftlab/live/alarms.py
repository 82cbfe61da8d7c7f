"""Limits on drift: which numbers of a checkpoint may raise an alarm, and when they do."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from driftlab.errors import UsageError

WATCHED = {
    "nss": "mean normalised spectral shift over the matrices",
    "rel_frobenius": "mean relative norm of the update over the matrices",
    "max_angle_deg": "largest principal angle of either side over the matrices, in degrees",
}
"""Numbers of the weights that a limit can be put on."""
PROBED = {
    "kl": "KL(start || now) of a response to a probe prompt, in nats",
    "repeat_rate": "share of repeated 4-grams in sampled answers to the probe prompts",
}
"""Numbers of the policy that a limit can be put on, where prompts are probed."""
_MEANS = ("nss", "rel_frobenius", "mask_overlap", "update_density")


def check_limits(limits: Mapping[str, float], known: Iterable[str], option: str) -> dict[str, float]:
    """Return the limits as numbers.

    Raises
    ------
    UsageError
        If a name is unknown or a limit is no number of at least 0.

    Examples
    --------
    >>> check_limits({"nss": 1e-3}, WATCHED, "warn")
    {'nss': 0.001}
    """
    names = list(known)
    for name, limit in limits.items():
        if name not in names:
            raise UsageError(f"{option}: expected one of {', '.join(names)}, found {name!r}.")
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < math.inf:
            raise UsageError(f"{option} {name}: expected a number of at least 0, found {limit!r}.")
    return {name: float(limit) for name, limit in limits.items()}


def read_limits(texts: Sequence[str], option: str) -> dict[str, float]:
    """Read limits written as ``NAME=NUMBER``.

    Raises
    ------
    UsageError
        If one is not of that form, or its name or number is wrong.

    Examples
    --------
    >>> read_limits(["nss=1e-3", "max_angle_deg=5"], "--alarm")
    {'nss': 0.001, 'max_angle_deg': 5.0}
    """
    limits = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            limits[name] = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise UsageError(f"{option}: expected NAME=NUMBER, found {text!r}.", f"For instance {option} nss=1e-3.")
    return check_limits(limits, WATCHED, option)


def numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of one checkpoint from its rows of the table ``spectral``.

    Means over the matrices measured, beside ``nss_null``, the mean null of the spectral shift, and ``max_angle_deg``,
    the largest angle of both sides. NaN where no matrix has the number. ``matrices`` and ``failed`` count rows.
    """
    ok = [row for row in rows if row["status"] == "ok"]
    found = {name: _mean(row.get(name) for row in ok) for name in (*_MEANS, "nss_null")}
    angles = [row.get(f"max_angle_{side}_deg") for row in ok for side in ("left", "right")]
    known = [angle for angle in angles if angle is not None and not math.isnan(angle)]
    found["max_angle_deg"] = max(known, default=math.nan)
    failed = sum(row["status"] == "failed" for row in rows)
    return {**found, "matrices": float(len(ok)), "failed": float(failed)}


def exceeded(values: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Return a sentence for each limit that a number exceeds; a NaN exceeds none.

    Examples
    --------
    >>> exceeded({"nss": 0.02, "rel_frobenius": 0.1}, {"nss": 0.01, "rel_frobenius": 0.2})
    ['nss 0.02 is above 0.01']
    """
    return [
        f"{name} {values[name]:.4g} is above {limit:g}"
        for name, limit in limits.items()
        if values.get(name, math.nan) > limit
    ]


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
