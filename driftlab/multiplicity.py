"""What many tests at once do to a p-value."""

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Return p-values adjusted for their number by Holm's step-down method; NaN stays NaN and does not count.

    The i-th smallest of K becomes :math:`\max_{j \le i} \min(1, (K - j + 1)\, p_{(j)})`: valid for any dependence
    between the tests.

    References
    ----------
    S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Stat. 6, 1979.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted = list(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[i] = highest
    return adjusted
