r"""The Razor exactly, where all responses can be listed: probability tables of responses of T tokens from V.

A joint table has shape (V,) * T; a token kernel is a list of T tables, the t-th of shape (V,) * (t + 1), whose last
axis is the next token. Everything is float64 and exact up to rounding: the oracle of the sampled estimates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftlab.errors import ShapeError
from driftlab.responses.razor import kl_bernoulli

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Razor:
    """KL(P‖P0) = kl(s‖p0) + KL(P‖Q†), each term computed by itself, in nats."""

    drift: float
    required: float
    excess: float
    success: float
    success_base: float


def kl(p: Table, q: Table) -> float:
    """KL(p‖q) of two tables of one shape, in nats; inf where q lacks mass that p has."""
    _same(p, q)
    inside = p > 0
    with np.errstate(divide="ignore"):
        return float((p[inside] * (np.log(p[inside]) - np.log(q[inside]))).sum())


def joint(kernel: list[Table]) -> Table:
    """Multiply the conditional tables of a policy out into the table of its responses."""
    table = kernel[0]
    for conditional in kernel[1:]:
        table = table[..., None] * conditional
    return table


def conditionals(table: Table) -> list[Table]:
    """Return the token kernel of a joint table; uniform after prefixes that never occur."""
    steps = []
    for t in range(table.ndim):
        prefix = table.sum(axis=tuple(range(t + 1, table.ndim))) if t + 1 < table.ndim else table
        whole = prefix.sum(axis=-1, keepdims=True)
        steps.append(np.where(whole > 0, prefix / np.where(whole > 0, whole, 1.0), 1.0 / prefix.shape[-1]))
    return steps


def minimal_policy(base: Table, success: NDArray[np.bool_], level: float) -> Table:
    r"""Return :math:`Q^\dagger`, the policy of success ``level`` closest to ``base`` in KL(·‖base).

    Raises
    ------
    ShapeError
        If the base's success is 0 or 1: then no other level can be reached.

    Examples
    --------
    >>> q = minimal_policy(np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, False]), 0.6)
    >>> q.round(6).tolist()
    [0.2, 0.4, 0.171429, 0.228571]
    """
    _same(base, success)
    p0 = float(base[success].sum())
    if not 0 < p0 < 1:
        raise ShapeError(f"Base policy: expected a success rate between 0 and 1, found {p0}.")
    return np.where(success, base * level / p0, base * (1 - level) / (1 - p0))


def token_kernel(base: list[Table], success: NDArray[np.bool_], level: float) -> list[Table]:
    r"""Return the token kernel of :math:`Q^\dagger` without building it: tilt each base conditional.

    :math:`q^\dagger(a \mid h) \propto \pi_0(a \mid h)\, g(h, a)`,
    :math:`g = \frac{s}{p_0} P_0(S \mid h, a) + \frac{1-s}{1-p_0} (1 - P_0(S \mid h, a))`.
    """
    value = success.astype(float)  # P0(success | h, a), from the last token backwards
    values = [value]
    for conditional in reversed(base[1:]):
        value = (conditional * value).sum(-1)
        values.insert(0, value)
    p0 = float((base[0] * values[0]).sum())
    kernel = []
    for conditional, chance in zip(base, values, strict=True):
        tilted = conditional * (level / p0 * chance + (1 - level) / (1 - p0) * (1 - chance))
        kernel.append(tilted / tilted.sum(-1, keepdims=True))
    return kernel


def razor(policy: Table, base: Table, success: NDArray[np.bool_]) -> Razor:
    """Split the drift of a policy into what its success required and the rest.

    Examples
    --------
    >>> base, inside = np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, False])
    >>> found = razor(np.array([0.35, 0.25, 0.3, 0.1]), base, inside)
    >>> round(found.drift, 8), round(found.required, 8), round(found.excess, 8)
    (0.35562349, 0.19204199, 0.1635815)
    """
    _same(policy, base)
    s, p0 = float(policy[success].sum()), float(base[success].sum())
    excess = kl(policy, minimal_policy(base, success, s))
    return Razor(kl(policy, base), float(kl_bernoulli(s, p0)), excess, s, p0)


def _same(left: NDArray[np.generic], right: NDArray[np.generic]) -> None:
    if left.shape != right.shape:
        raise ShapeError(f"Tables: expected equal shapes, found {left.shape} and {right.shape}.")
