"""Means of scores after the last stage, for the figures that set scores beside training dynamics."""

import pandas as pd

from driftlab.results import ResultsDir

_Z = 1.959963984540054


def final_means(scores: pd.DataFrame, changes: pd.DataFrame) -> pd.DataFrame:
    """Return the mean score after the last stage over trained and over never trained tasks, and the base's.

    Parameters
    ----------
    scores : DataFrame
        The table ``scores``; gives the base.
    changes : DataFrame
        The table ``forgetting``; gives scores and how tasks stand to the training.

    Returns
    -------
    DataFrame
        ``method, group`` (``trained``, ``never trained``, ``base, trained``, …), ``mean, low, high, n_seeds, n_tasks``.
        With several seeds low and high are their range; with one they are the 95 % interval over the questions, from
        the standard errors.
    """
    percent = set(scores.loc[scores["scale"] == "percent", "task"])
    ends = changes[changes["stage_end"].astype(bool) & changes["score"].notna() & changes["task"].isin(percent)]
    last = ends[ends["stage_index"] == ends.groupby("run")["stage_index"].transform("max")]
    group = last["kind"].map({"in-domain": "trained", "trained-before": "trained", "ood": "never trained"})
    rows = last.assign(group=group).dropna(subset=["group"])
    runs = pd.concat([_means(rows, "score"), _means(rows.assign(group="base, " + rows["group"]), "base")])
    return _over_seeds(runs)


def source_of(results: ResultsDir) -> str:
    """Return where the user said the scores come from."""
    return str(results.manifest()["commands"].get("forgetting", {}).get("source") or "")


def _means(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    squared = rows["stderr"] ** 2 if column == "score" else rows["stderr"] * float("nan")
    keys = ["method", "run", "group"]
    found = rows.assign(value=rows[column], variance=squared).groupby(keys, sort=False)
    means = found.agg(mean=("value", "mean"), n_tasks=("task", "nunique"))
    variance = found["variance"].sum(min_count=1) / means["n_tasks"] ** 2
    return means.assign(half=_Z * variance**0.5).reset_index()


def _over_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    found = runs.groupby(["method", "group"], sort=False).agg(
        mean=("mean", "mean"), low=("mean", "min"), high=("mean", "max"), n_seeds=("run", "nunique"),
        n_tasks=("n_tasks", "max"), half=("half", "mean"),
    ).reset_index()  # fmt: skip
    alone = found["n_seeds"] == 1
    found["low"] = found["low"].where(~alone, found["mean"] - found["half"])
    found["high"] = found["high"].where(~alone, (found["mean"] + found["half"]).clip(upper=100))
    return found.drop(columns="half")


def score_words(means: pd.DataFrame) -> str:
    """Say what the whiskers are and over how many tasks the means go."""
    counts = means[~means["group"].str.startswith("base")].groupby("group")["n_tasks"].max()
    tasks = ", ".join(f"{int(n)} {group} tasks" for group, n in counts.items())
    if (means["n_seeds"] > 1).any():
        return f"Scores after the last stage, means over {tasks} and seeds; whiskers: range over seeds."
    return f"Scores after the last stage, means over {tasks}; whiskers: 95 % over the questions of one seed."
