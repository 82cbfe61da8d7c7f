"""Intervals and tests over prompts by resampling, all draws given by a seed."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.seeding import generator

Vector = NDArray[np.float64]
BOOTSTRAP = 1999
FLIPS = 9999
W1_FLIPS = 499
LEVEL = 0.95
_BLOCK = 1 << 22


def bootstrap(values: Vector, seed: int, draws: int = BOOTSTRAP, below: float = 0.9) -> dict[str, tuple[float, float]]:
    """Return percentile intervals of mean, median and the share below a level, resampling prompts.

    Parameters
    ----------
    values : array of shape (n,)
        One a prompt, without NaN.
    seed : int
    draws : int, default 1999
    below : float, default 0.9
        The level of the share.

    Returns
    -------
    dict of str to (low, high)
        Keys ``mean``, ``median``, ``share``; NaN below two values.

    References
    ----------
    B. Efron, "Bootstrap methods: another look at the jackknife", Ann. Statist. 7(1), 1979.
    """
    if len(values) < 2:
        return dict.fromkeys(("mean", "median", "share"), (np.nan, np.nan))
    found: dict[str, list[Vector]] = {"mean": [], "median": [], "share": []}
    for index in _resamples(len(values), seed, draws):
        drawn = values[index]
        found["mean"].append(drawn.mean(axis=1))
        found["median"].append(np.median(drawn, axis=1))
        found["share"].append((drawn < below).mean(axis=1))
    return {name: _interval(np.concatenate(parts)) for name, parts in found.items()}


def bootstrap_mean(values: Vector, seed: int, draws: int = BOOTSTRAP) -> tuple[float, float]:
    """Return the percentile interval of the mean, for instance of paired differences; NaN below two values."""
    if len(values) < 2:
        return (np.nan, np.nan)
    return _interval(np.concatenate([values[index].mean(axis=1) for index in _resamples(len(values), seed, draws)]))


def sign_flip_p(differences: Vector, seed: int, draws: int = FLIPS) -> float:
    r"""Two-sided p-value of a mean of paired differences, :math:`(1 + \#\{|\bar d^*| \ge |\bar d|\}) / (1 + B)`.

    Where the two members of a pair are exchangeable, each difference has either sign with probability ½.

    Parameters
    ----------
    differences : array of shape (n,)
        Without NaN.

    Returns
    -------
    float
        In (0, 1]; 1 where no pair differs; NaN for no pair.

    References
    ----------
    E. J. G. Pitman, "Significance tests which may be applied to samples from any populations", J. R. Stat. Soc. Suppl.
    4(1), 1937.
    """
    if not len(differences):
        return np.nan
    observed = abs(differences.sum())
    tolerance = 1e-9 * np.abs(differences).sum()  # sums of the same numbers in another order may differ in rounding
    extreme = sum(
        int((np.abs(signs @ differences) >= observed - tolerance).sum())
        for signs in _signs(len(differences), seed, draws)
    )
    return (1 + extreme) / (1 + draws)


def wasserstein_null(left: Vector, right: Vector, seed: int, draws: int = W1_FLIPS) -> float:
    """Return the 95 % quantile of the Wasserstein-1 distance when the members of each pair are swapped at random.

    The distance of two samples is never 0, even from one distribution: this is its noise floor. NaN for no pair.
    """
    if not len(left):
        return np.nan
    values = []
    for signs in _signs(len(left), seed, draws):
        swap = signs < 0
        a, b = np.where(swap, right, left), np.where(swap, left, right)
        values.append(np.abs(np.sort(a, axis=1) - np.sort(b, axis=1)).mean(axis=1))
    return float(np.quantile(np.concatenate(values), 0.95))


def _resamples(n: int, seed: int, draws: int) -> Iterator[NDArray[np.int64]]:
    rng = generator("response bootstrap", seed, n)
    step = max(1, _BLOCK // n)
    for start in range(0, draws, step):
        yield rng.integers(n, size=(min(step, draws - start), n))


def _signs(n: int, seed: int, draws: int) -> Iterator[Vector]:
    rng = generator("response signs", seed, n)
    step = max(1, _BLOCK // n)
    for start in range(0, draws, step):
        yield 2.0 * rng.integers(2, size=(min(step, draws - start), n), dtype=np.int8).astype(np.float64) - 1.0


def _interval(values: Vector) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
