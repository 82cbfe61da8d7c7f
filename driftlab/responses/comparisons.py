"""Which of two runs moved its responses further: paired tests on the prompts that both answered."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import wasserstein_distance

from driftlab.multiplicity import holm
from driftlab.responses.resampling import FLIPS, bootstrap_mean, sign_flip_p, wasserstein_null
from driftlab.responses.summaries import ALL

OTHER_SEED = "(base, other seed)"
LEVEL = 0.05
_ASKED = ["id", "prompt_digest"]
_COLUMNS = [
    *("left", "right", "label", "order", "task", "n", "mean_left", "mean_right"),
    *("difference", "low", "high", "p_value", "p_holm", "w1", "w1_null_q95", "verdict"),
]


def compare_runs(pairs: pd.DataFrame, seed: int = 0, only: Sequence[tuple[str, str]] | None = None) -> pd.DataFrame:
    """Compare every two runs at each label both have, and every run with the base under another seed.

    The difference is paired: only prompts with a similarity on both sides count, and they are resampled together. The
    same id with another prompt is another question (runs of another seed); runs without a common one are not compared.

    Parameters
    ----------
    pairs : DataFrame
        The table ``similarity``.
    seed : int, default 0
        Of bootstrap and sign flips.
    only : sequence of (str, str), optional
        Pairs of runs; all of them by default.

    Returns
    -------
    DataFrame
        ``left, right, label, order, task, n, mean_left, mean_right, difference`` (left − right: below 0 means that
        ``left`` moved further), its bootstrap interval ``low, high``, ``p_value`` of a sign-flip test, ``p_holm``
        corrected for the comparisons of one task group, Wasserstein-1 distance ``w1`` of the two distributions with
        its noise floor ``w1_null_q95``, and ``verdict``: ``separated``, ``not separated`` or ``too few prompts``.
    """
    ok = pairs[pairs["status"] == "ok"]
    rows = []
    for left, right, label, order, joined in _matched(ok, only):
        tasks = [task for task in dict.fromkeys(joined["task"]) if task]
        for task in [ALL, *tasks]:
            group = joined if task == ALL else joined[joined["task"] == task]
            place = {"left": left, "right": right, "label": label, "order": order, "task": task}
            rows.append(place | _compared(group["left"].to_numpy(float), group["right"].to_numpy(float), seed))
    table = pd.DataFrame(rows, columns=_COLUMNS)
    for _, family in table.groupby("task"):
        table.loc[family.index, "p_holm"] = holm(family["p_value"].to_list())
    table["verdict"] = [
        "too few prompts" if n < 2 else "separated" if p < LEVEL else "not separated"
        for n, p in zip(table["n"], table["p_holm"].astype(float), strict=True)
    ]
    return table.astype({"p_holm": float})


def _matched(
    ok: pd.DataFrame, only: Sequence[tuple[str, str]] | None
) -> Iterator[tuple[str, str, str, int, pd.DataFrame]]:
    """Yield pairs of runs at one label, joined by prompt; runs of one label each are compared whatever its name."""
    runs = {str(run): rows for run, rows in ok.groupby("run", sort=False)}
    single = {run: len(set(rows["label"])) == 1 for run, rows in runs.items()}
    for one, other in combinations(runs, 2) if only is None else only:
        if one not in runs or other not in runs:
            continue
        a, b = runs[one], runs[other]
        if single[one] and single[other]:
            labels = [(str(a["label"].iloc[0]), str(b["label"].iloc[0]))]
        else:
            labels = [(label, label) for label in dict.fromkeys(a["label"]) if label in set(b["label"])]
        for mine, theirs in labels:
            left, right = a[a["label"] == mine], b[b["label"] == theirs]
            joined = left[["task", *_ASKED, "similarity"]].merge(right[[*_ASKED, "similarity"]], on=_ASKED)
            joined = joined.rename(columns={"similarity_x": "left", "similarity_y": "right"})
            shown = mine if mine == theirs else f"{mine} | {theirs}"
            if len(joined):
                yield one, other, shown, int(left["order"].iloc[0]), joined
    for run, rows in runs.items():
        for label, some in rows[rows["other_seed"].notna()].groupby("label", sort=False):
            kept = some[["task", "similarity", "other_seed"]].set_axis(["task", "left", "right"], axis=1)
            yield run, OTHER_SEED, str(label), int(some["order"].iloc[0]), kept


def _compared(left: np.ndarray, right: np.ndarray, seed: int) -> dict[str, Any]:
    difference = left - right
    low, high = bootstrap_mean(difference, seed)
    enough = len(difference) > 0
    return {
        "n": len(difference),
        "mean_left": float(left.mean()) if enough else np.nan,
        "mean_right": float(right.mean()) if enough else np.nan,
        "difference": float(difference.mean()) if enough else np.nan,
        "low": low,
        "high": high,
        "p_value": sign_flip_p(difference, seed),
        "w1": float(wasserstein_distance(left, right)) if enough else np.nan,
        "w1_null_q95": wasserstein_null(left, right, seed),
    }


def in_words(tests: pd.DataFrame) -> Iterator[str]:
    """Say of each comparison over all prompts, at the last label both runs have, how it came out."""
    whole = tests[tests["task"] == ALL]
    for (left, right), rows in whole.groupby(["left", "right"], sort=False):
        row = rows.iloc[int(rows["order"].to_numpy().argmax())]
        numbers = (
            f"mean {row['mean_left']:.4f} against {row['mean_right']:.4f}, difference {row['difference']:+.4f} "
            f"[{row['low']:+.4f}, {row['high']:+.4f}], {row['n']} prompts, p {_p(row['p_holm'])}"
        )
        if row["verdict"] != "separated":
            yield f"{row['label']}: {left} and {right} are not separated ({numbers})"
        elif right == OTHER_SEED:
            side = "less" if row["difference"] < 0 else "more"
            yield f"{row['label']}: {left} is {side} similar to the base than the base under another seed ({numbers})"
        else:
            moved = "further from" if row["difference"] < 0 else "less far from"
            yield f"{row['label']}: {left} moved {moved} its reference than {right} ({numbers})"


def resolvable(tests: pd.DataFrame) -> bool:
    """Whether the number of sign flips lets a comparison pass the correction at all."""
    return bool(tests.groupby("task").size().max() / (1 + FLIPS) < LEVEL) if len(tests) else True


def _p(value: float) -> str:
    return "< 0.001" if value < 1e-3 else f"= {value:.2g}"
