r"""Drift beyond what success required.

Let S be the set of successful responses, p0 = P0(S) the base's success and s = P(S) that of a policy P. The policy of
success s that is closest to the base only moves mass between S and its complement,
:math:`Q^\dagger = s P_0(\cdot \mid S) + (1-s) P_0(\cdot \mid S^c)`, at the price of a Bernoulli divergence, and
whatever P did besides comes on top:

.. math:: KL(P \| P_0) = kl(s \| p_0) + KL(P \| Q^\dagger).

The last term is ``excess_drift``, never negative.

**Which level.** The identity holds for the responses to one prompt. Averaged over prompts the price is
:math:`E_x\,kl(s_x \| p_{0,x})`, and :math:`kl(E s_x \| E p_{0,x})` is a lower bound of it, because kl is convex in both
arguments together. Per prompt a handful of samples cannot tell s_x, pooled they can. So two numbers are given:

- pooled (``kl_bernoulli``, ``excess_drift``): success pooled over the prompts of a task. A lower bound of the price, so
  the excess is an **upper bound**; its interval is honest.
- per prompt (``kl_bernoulli_prompt``, ``excess_drift_prompt``): the level of the identity, estimated from few samples.
  Its price is biased: over success rates from .1 to .97 by -.77 to +.20 nats a prompt at 4 copies, by -.14 to +.06 at
  16; too high where the two rates are near each other, too low where they are far apart.

The pooled numbers are an identity of their own, with a minimiser that may also change how often a prompt is asked.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student_t

from driftlab.errors import ShapeError
from driftlab.responses.estimates import wilson

Values = NDArray[np.float64]
NO_PRICE = "the base {what} in all {n} responses: the price of another success rate cannot be estimated"


def kl_bernoulli(s: ArrayLike, p0: ArrayLike) -> Values:
    r"""Bernoulli divergence :math:`s \log(s/p_0) + (1-s) \log((1-s)/(1-p_0))` in nats.

    Parameters
    ----------
    s, p0 : float or arrays that broadcast
        Probabilities.

    Returns
    -------
    array
        In [0, inf]; inf where p0 is 0 or 1 and s differs from it.

    Raises
    ------
    ShapeError
        If a value lies outside [0, 1]. NaN is passed on.

    Examples
    --------
    >>> float(kl_bernoulli(0.6, 0.3).round(8)), float(kl_bernoulli(1, 1))
    (0.19204199, 0.0)
    """
    left, right = np.asarray(s, dtype=float), np.asarray(p0, dtype=float)
    for name, value in (("s", left), ("p0", right)):
        if ((value < 0) | (value > 1)).any():
            raise ShapeError(f"kl_bernoulli: expected {name} in [0, 1], found {value.min()} to {value.max()}.")
    return _part(left, right) + _part(1 - left, 1 - right)


@dataclass(frozen=True)
class Excess:
    """Price and excess of one task or of several, in nats; NaN with a reason where there is no number."""

    kl: float
    kl_bernoulli: float
    excess: float
    se: float
    low: float
    high: float
    prompts: int
    kl_bernoulli_prompt: float = math.nan
    excess_prompt: float = math.nan
    reason: str = ""


def excess_drift(kl: ArrayLike, success: ArrayLike, success_base: ArrayLike, copies: int = 1) -> Excess:
    r"""Excess drift of the responses to the prompts of one task, with a 95 % interval.

    The interval is the delta method over prompts, with kl' the derivatives of the Bernoulli divergence:
    :math:`\psi_x = KL_x - kl'_s (s_x - \bar s) - kl'_{p} (p_x - \bar p)`, its spread over prompts and Student's t.
    Where every response succeeds, or none, success has no spread to go by; the upper end then takes the success rate
    at the end of its Wilson interval.

    Parameters
    ----------
    kl : array of shape (X,)
        Estimated KL(P‖P0) of each prompt.
    success, success_base : array of shape (X,)
        Share of successes of either policy on each prompt; NaN where none is known: such a prompt is left out.
    copies : int
        Responses a prompt, of either policy. Per-prompt numbers need two: they add half a success and half a failure
        to both sides (Jeffreys), so that equal counts cost nothing and no count costs infinitely much.

    Raises
    ------
    ShapeError
        If the arrays differ in shape.
    """
    k, s, p = (np.asarray(values, dtype=float) for values in (kl, success, success_base))
    if not k.shape == s.shape == p.shape or k.ndim != 1:
        raise ShapeError(f"excess_drift: expected three arrays of one length, found {k.shape}, {s.shape}, {p.shape}.")
    known = ~(np.isnan(k) | np.isnan(s) | np.isnan(p))
    k, s, p, n = k[known], s[known], p[known], int(known.sum())
    if not n:
        return _nothing(math.nan, 0, "no prompt has a known reward")
    mean, rate, base = float(k.mean()), float(s.mean()), float(p.mean())
    price = float(kl_bernoulli(rate, base))
    if not math.isfinite(price) or not math.isfinite(mean):
        what = "failed" if base == 0 else "succeeded"
        reason = NO_PRICE.format(what=what, n=n * copies) if not math.isfinite(price) else "the KL is infinite"
        return _nothing(mean, n, reason)
    psi = k - _slope(rate, base) * (s - rate) - (base - rate) / max(base * (1 - base), 1e-300) * (p - base)
    se = float(psi.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    half = se * float(student_t.ppf(0.975, n - 1)) if n > 1 else math.nan
    high = mean - price + half
    if rate in (0.0, 1.0) and 0 < base < 1:
        inner = wilson(rate, n)[0 if rate == 1 else 1]
        high += max(0.0, price - float(kl_bernoulli(inner, base)))
    per_prompt = math.nan
    if copies > 1:
        smooth = (0.5 + copies * np.stack([s, p])) / (copies + 1)
        per_prompt = float(kl_bernoulli(*smooth).mean())
    return Excess(mean, price, mean - price, se, mean - price - half, high, n, per_prompt, mean - per_prompt)


def combine(parts: list[Excess]) -> Excess:
    """Average over tasks, each by its number of prompts; the price stays that of each task, which is the tighter bound.

    Tasks without a number are left out and counted in the reason.
    """
    found = [part for part in parts if math.isfinite(part.excess)]
    reason = f"{len(parts) - len(found)} of {len(parts)} tasks have no excess drift" if len(found) < len(parts) else ""
    if not found:
        return _nothing(math.nan, 0, reason)
    weights = np.array([part.prompts for part in found], dtype=float)
    weights /= weights.sum()

    def mean(name: str) -> float:
        return float(weights @ np.array([getattr(part, name) for part in found]))

    def joint(spreads: list[float]) -> float:
        return float(np.sqrt((weights**2) @ np.square(spreads)))

    middle = mean("excess")
    low = middle - joint([part.excess - part.low for part in found])
    high = middle + joint([part.high - part.excess for part in found])
    return Excess(
        mean("kl"), mean("kl_bernoulli"), middle, joint([part.se for part in found]), low, high,
        sum(part.prompts for part in found), mean("kl_bernoulli_prompt"), mean("excess_prompt"), reason,
    )  # fmt: skip


def _part(a: Values, b: Values) -> Values:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a == 0, 0.0 * b, a * (np.log(a) - np.log(b)))


def _slope(s: float, p: float) -> float:
    """Return the derivative of kl in s; 0 at the ends, where no prompt differs from the mean."""
    return 0.0 if s in (0.0, 1.0) or p in (0.0, 1.0) else math.log(s * (1 - p) / (p * (1 - s)))


def _nothing(kl: float, n: int, reason: str) -> Excess:
    return Excess(kl, math.nan, math.nan, math.nan, math.nan, math.nan, n, reason=reason)
