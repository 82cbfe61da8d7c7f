"""One number a run for everything a study compares: what its last checkpoint shows, from the stored tables."""

from collections.abc import Iterator

import pandas as pd

from driftlab.results import ResultsDir

WEIGHTS = ("nss", "max_angle_left_deg", "mask_overlap", "rel_frobenius", "rel_spectral")
POLICY = ("kl_new_to_base", "excess_drift", "entropy_new", "js")
TEXTS = ("artifact_rate", "repeat_rate", "truncated", "mean_words")
SIMILARITY = ("mean", "q05")
ALL = "all"
COLUMNS = ["run", "method", "seed", "number", "value"]


def run_numbers(results: ResultsDir) -> pd.DataFrame:
    """Return the numbers of every run that is done.

    Weights: medians over the matrices. Policy and texts: over the responses to all tasks. Similarity: of the
    responses to those of the base. Scores: the metrics after the last stage.

    Returns
    -------
    DataFrame
        Columns ``run, method, seed, number, value``.
    """
    runs = results.table("runs").set_index("run")
    parts = [part for part in _parts(results) if not part.empty]
    long = pd.concat(parts, ignore_index=True)
    long = long[long["run"].isin(runs.index)]
    long["method"] = long["run"].map(runs["method"])
    long["seed"] = long["run"].map(runs["seed"])
    return long[COLUMNS].reset_index(drop=True)


def _parts(results: ResultsDir) -> Iterator[pd.DataFrame]:
    summary = results.table("spectral_summary")
    model = _last(summary[summary["group_by"] == "model"])
    model = model[model["measure"].isin(WEIGHTS)]
    yield model[["run", "measure", "median"]].set_axis(["run", "number", "value"], axis=1)
    yield _long(_last(_whole(results.table("policy"))), POLICY)
    yield _long(_last(_whole(results.table("artifacts"))), TEXTS)
    yield _long(_last(_whole(results.table("similarity_summary"))), SIMILARITY, "similarity_")
    scores = results.table("forgetting_summary")
    scores = scores[(scores["level"] == "run") & (scores["task"] == "")]
    scores = scores[scores["stage_index"] == scores.groupby("run")["stage_index"].transform("max")]
    yield scores[["run", "metric", "value"]].set_axis(["run", "number", "value"], axis=1)


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["task"] == ALL]


def _last(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["order"] == table.groupby("run")["order"].transform("max")]


def _long(table: pd.DataFrame, columns: tuple[str, ...], prefix: str = "") -> pd.DataFrame:
    """Return (run, number, value) rows of the columns that are there."""
    there = [name for name in columns if name in table]
    long = table.melt(id_vars="run", value_vars=there, var_name="number", value_name="value")
    return long.assign(number=prefix + long["number"])
