"""The distribution of similarity for each run, label and task: quartiles, tails, baselines, counts."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import wasserstein_distance

from driftlab.responses.pairing import EMPTY_NEW, EMPTY_REFERENCE, NO_NEW, NO_REFERENCE, PROMPTS_DIFFER
from driftlab.responses.resampling import bootstrap, bootstrap_mean

KEYS = ["run", "method", "seed", "label", "stage", "step", "order", "reference"]
ALL = "all"
LOW = 0.9
_TAILS = {"q01": 0.01, "q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75}
_MIDDLE = {name: _TAILS[name] for name in ("q25", "median", "q75")}


def summarise(pairs: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Summarise the table ``similarity``, for all prompts and for each task.

    Parameters
    ----------
    pairs : DataFrame
        The table ``similarity``.
    seed : int, default 0
        Of the bootstrap.

    Returns
    -------
    DataFrame
        One row for each (run, label, task), ``task`` = ``all`` first: the columns that ``docs/responses.md`` lists.
    """
    rows = []
    for _, label in pairs.groupby(["run", "order", "label"], sort=False):
        head = {name: label[name].iloc[0] for name in KEYS}
        tasks = [task for task in dict.fromkeys(label["task"]) if task]
        groups = [(ALL, label), *((task, label[label["task"] == task]) for task in tasks)]
        rows += [head | {"task": task} | summarise_group(group, seed) for task, group in groups]
    return pd.DataFrame(rows).astype({"seed": "Int64", "step": "Int64"})


def summarise_group(rows: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Return every number of one group of pairs; NaN where there are too few for it."""
    ok = rows[rows["status"] == "ok"]
    values = ok["similarity"].to_numpy(float)
    truncated = ok[["truncated_ref", "truncated_new"]].astype("boolean").fillna(False)
    complete = values[~truncated.any(axis=1).to_numpy(bool)]
    intervals = bootstrap(values, seed, below=LOW)
    found: dict[str, Any] = {"pairs": len(rows), "n": len(values), "mean": _mean(values)}
    found["mean_low"], found["mean_high"] = intervals["mean"]
    found |= _quantiles(values, _TAILS)
    found["median_low"], found["median_high"] = intervals["median"]
    found["share_below_90"] = _mean(np.where(values < LOW, 1.0, 0.0))
    found["share_below_90_low"], found["share_below_90_high"] = intervals["share"]
    found["identical_share"] = _mean(ok["identical"].to_numpy(float))
    found |= {"complete_n": len(complete), "complete_median": _quantiles(complete, {"median": 0.5})["median"]}
    found |= _baselines(ok, values, seed)
    return found | _counts(rows, ok, truncated)


def _baselines(ok: pd.DataFrame, values: np.ndarray, seed: int) -> dict[str, Any]:
    random, other = ok["random"].to_numpy(float), ok["other_seed"].to_numpy(float)
    found: dict[str, Any] = {}
    for name, level in (("random", random), ("other_seed", other)):
        known = ~np.isnan(level)
        found[f"{name}_n"] = int(known.sum())
        found[f"{name}_mean"] = _mean(level[known])
        found |= {f"{name}_{key}": value for key, value in _quantiles(level[known], _MIDDLE).items()}
        found[f"w1_{name}"] = float(wasserstein_distance(values[known], level[known])) if known.any() else np.nan
    gap = (other - values)[~np.isnan(other)]
    found["beyond_seed"] = _mean(gap)
    found["beyond_seed_low"], found["beyond_seed_high"] = bootstrap_mean(gap, seed)
    same = ok["same_text"].to_numpy(float)
    found["same_text_min"] = float(np.nanmin(same)) if np.isfinite(same).any() else np.nan
    return found


def _counts(rows: pd.DataFrame, ok: pd.DataFrame, truncated: pd.DataFrame) -> dict[str, int]:
    reasons = rows["reason"]
    skipped = {
        "unmatched": int(reasons.isin([NO_REFERENCE, NO_NEW]).sum()),
        "prompts_differ": int((reasons == PROMPTS_DIFFER).sum()),
        "empty_ref": int((reasons == EMPTY_REFERENCE).sum()),
        "empty_new": int((reasons == EMPTY_NEW).sum()),
        "failed": int((rows["status"] == "failed").sum()),
    }
    unusable = len(rows) - len(ok) - sum(skipped.values())  # several responses under one id, or no single text
    return skipped | {
        "unusable": unusable,
        "truncated_ref": int(truncated["truncated_ref"].sum()),
        "truncated_new": int(truncated["truncated_new"].sum()),
        "cut": int((ok["cut_ref"].astype(bool) | ok["cut_new"].astype(bool)).sum()),
        "indistinct": int(ok["indistinct"].astype(bool).sum()),
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else np.nan


def _quantiles(values: np.ndarray, levels: dict[str, float]) -> dict[str, float]:
    found = np.quantile(values, list(levels.values())) if len(values) else np.full(len(levels), np.nan)
    return {name: float(value) for name, value in zip(levels, found, strict=True)}
