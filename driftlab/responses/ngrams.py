r"""Which phrases a checkpoint amplified: log-odds against the base with an informative Dirichlet prior.

For n-gram w with counts y in the checkpoint's and the base's responses and a prior :math:`\alpha_w` proportional to its
count in both together, :math:`\sum_w \alpha_w = \alpha_0`,

.. math::
    \delta_w = \log\frac{y^1_w + \alpha_w}{n^1 + \alpha_0 - y^1_w - \alpha_w}
             - \log\frac{y^0_w + \alpha_w}{n^0 + \alpha_0 - y^0_w - \alpha_w}, \quad
    \sigma_w^2 \approx \frac{1}{y^1_w + \alpha_w} + \frac{1}{y^0_w + \alpha_w}, \quad z_w = \delta_w / \sigma_w .

Occurrences inside one response are not independent, so z ranks phrases and is no test; the shares of responses that
hold the phrase stand beside it.

References
----------
Monroe, Colaresi and Quinn, "Fightin' words", Political Analysis 16(4), 2008.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from driftlab.responses.artifacts import words

SIZES = (1, 2, 4)
PRIOR = 500.0
"""Pseudo-words of the prior: worth some ten responses of fifty words, so that a phrase seen twice does not lead."""


def amplified(new: Sequence[str], base: Sequence[str], top: int = 10) -> list[dict[str, Any]]:
    """Return the ``top`` most amplified n-grams of each size, strongest first.

    Parameters
    ----------
    new, base : sequence of str
        Responses of the checkpoint and of the base.
    top : int
        How many of each size.

    Returns
    -------
    list of dict
        ``size, rank, ngram, count, count_base, share, share_base`` (of responses that hold it), ``log_odds,
        log_odds_se, z``. Only n-grams that became more frequent.

    Examples
    --------
    >>> found = amplified(["to be or not to be"] * 9, ["to be is to do"] * 9, top=1)
    >>> [(row["ngram"], row["count"], row["count_base"]) for row in found if row["size"] == 4]
    [('be or not to', 9, 0)]
    """
    rows = []
    cut_new, cut_base = [words(text) for text in new], [words(text) for text in base]
    for size in SIZES:
        counts, holders = _count(cut_new, size)
        counts_base, holders_base = _count(cut_base, size)
        scored = _score(counts, counts_base)
        for rank, (gram, (delta, error)) in enumerate(scored[:top], 1):
            rows.append(
                {
                    "size": size,
                    "rank": rank,
                    "ngram": " ".join(gram),
                    "count": counts[gram],
                    "count_base": counts_base[gram],
                    "share": holders[gram] / len(new),
                    "share_base": holders_base[gram] / len(base),
                    "log_odds": delta,
                    "log_odds_se": error,
                    "z": delta / error,
                }
            )
    return rows


def _count(texts: Sequence[Sequence[str]], size: int) -> tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]:
    counts: Counter[tuple[str, ...]] = Counter()
    holders: Counter[tuple[str, ...]] = Counter()
    for tokens in texts:
        grams = list(zip(*(tokens[start:] for start in range(size)), strict=False))
        counts.update(grams)
        holders.update(set(grams))
    return counts, holders


def _score(
    new: Counter[tuple[str, ...]], base: Counter[tuple[str, ...]]
) -> list[tuple[tuple[str, ...], tuple[float, float]]]:
    """Return the n-grams whose log-odds rose with (log-odds, its error), by z and then by name."""
    total, total_base = new.total(), base.total()
    if not total or not total_base:
        return []
    found = {}
    for gram, count in new.items():
        prior = PRIOR * (count + base[gram]) / (total + total_base)
        ours, theirs = count + prior, base[gram] + prior
        rest, rest_base = total + PRIOR - ours, total_base + PRIOR - theirs
        if rest <= 0 or rest_base <= 0:  # the only n-gram there is
            continue
        delta = math.log(ours / rest) - math.log(theirs / rest_base)
        if delta > 0:
            found[gram] = (delta, math.sqrt(1 / ours + 1 / theirs))
    return sorted(found.items(), key=lambda item: (-item[1][0] / item[1][1], item[0]))
