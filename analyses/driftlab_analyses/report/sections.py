"""What the page shows of each room: which figures, which tables, and how to read them."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from driftlab.results import ResultsDir

_EXPLORED = 60_000  # rows that the page carries; a browser sorts these without a pause
_MAIN = ("nss", "max_angle_left_deg", "max_angle_right_deg", "mask_overlap", "mask_update_iou", "update_density",
         "rel_frobenius", "rel_spectral", "stable_rank_update", "principal_energy")  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One table: its title, the stored table it comes from, and the rows to show."""

    id: str
    title: str
    source: str
    rows: Callable[[ResultsDir], pd.DataFrame]
    note: str = ""


@dataclass(frozen=True)
class Explorer:
    """A long table of which one group at a time is shown, sorted and filtered in the page."""

    source: str
    groups: Callable[[ResultsDir], tuple[list[tuple[str, pd.DataFrame]], str]]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One room's part of the page."""

    id: str
    title: str
    lead: str
    figures: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    explorer: Explorer | None = None
    remarks: str = ""
    """The JSON file of which the remarks are shown."""

    @property
    def tables_read(self) -> list[str]:
        """Stored tables of which one is enough for the section to appear."""
        return [table.source for table in self.tables]


def _last(results: ResultsDir) -> pd.DataFrame:
    """Return each run's last checkpoint: every main measure, its spread, its null."""
    summary = results.table("spectral_summary")
    model = summary[(summary["group_by"] == "model") & (summary["order"] > 0) & summary["measure"].isin(_MAIN)]
    last = model[model["order"] == model.groupby("run")["order"].transform("max")]
    columns = ["run", "label", "measure", "n", "median", "q25", "q75", "error", "null_median", "verdict", "p_holm"]
    return last[columns].rename(columns={"n": "matrices", "error": "numeric error", "null_median": "null"})


def _trajectory(results: ResultsDir) -> pd.DataFrame:
    """Return the medians of the main measures along every run."""
    summary = results.table("spectral_summary")
    model = summary[(summary["group_by"] == "model") & (summary["order"] > 0)]
    order = {run: place for place, run in enumerate(dict.fromkeys(model["run"]))}
    wide = model.pivot_table(index=["run", "order", "label"], columns="measure", values="median")
    wide = wide.reset_index().sort_values(["run", "order"], key=lambda c: c.map(order) if c.name == "run" else c)
    return wide[["run", "label", *(name for name in _MAIN if name in wide)]]


def _matrices(results: ResultsDir) -> tuple[list[tuple[str, pd.DataFrame]], str]:
    """Return the rows of each checkpoint, those of the last ones only where all are too many for a page."""
    spectral = results.table("spectral")
    rows = spectral[spectral["order"] > 0]
    left_out = ""
    if len(rows) > _EXPLORED:
        rows = rows[rows["order"] == rows.groupby("run")["order"].transform("max")]
        left_out = "Only the last checkpoint of each run is here: all of them are too many for a page."
    columns = ["matrix", "layer", "role", "rows", "cols", "status", *_MAIN, "nss_error", "nss_null", "method", "reason"]
    shown = [name for name in columns if name in rows and rows[name].notna().any()]
    groups = rows.groupby(["run", "order", "label"], sort=False)
    return [(f"{run} {label}", part[shown]) for (run, _, label), part in groups], left_out


def _pairs(results: ResultsDir) -> pd.DataFrame:
    """Return the distance of every pair of domains."""
    columns = ["left", "right", "n_left", "n_right", "mmd2_u", "ci_low", "ci_high", "p_holm", "null_q95", "mmd"]
    return results.table("mmd")[columns].rename(columns={"null_q95": "noise floor"})


def _of_all(name: str, columns: tuple[str, ...]) -> Callable[[ResultsDir], pd.DataFrame]:
    """Return a reader of the rows over all tasks of a table, the base's left out."""

    def rows(results: ResultsDir) -> pd.DataFrame:
        table = results.table(name)
        chosen = table[(table["task"] == "all") & (table["order"] > 0)]
        return chosen[[column for column in columns if column in chosen]]

    return rows


def _metrics(results: ResultsDir) -> pd.DataFrame:
    """Return the metrics after the last stage: of methods over seeds where there are several, else of runs."""
    table = results.table("forgetting_summary")
    means = table[(table["task"] == "") & table["level"].isin(["method", "run"])]
    level = "method" if (means.loc[means["level"] == "method", "n_seeds"] > 1).any() else "run"
    means = means[means["level"] == level]
    last = means[means["stage_index"] == means.groupby(level)["stage_index"].transform("max")]
    return last[[level, "after", "metric", "value", "low", "high", "unit", "interval", "n_seeds", "n_tasks", "reason"]]


def _whole(name: str) -> Callable[[ResultsDir], pd.DataFrame]:
    return lambda results: results.table(name)


_SIMILAR = ("run", "label", "n", "mean", "mean_low", "mean_high", "q05", "median", "share_below_90", "identical_share",
            "random_mean", "other_seed_mean", "empty_new", "truncated_new")  # fmt: skip
_POLICY = ("run", "label", "n", "kl_new_to_base", "kl_new_to_base_se", "kl_base_to_new", "js", "entropy_new",
           "success", "success_base", "kl_bernoulli", "excess_drift", "excess_drift_low", "excess_drift_high",
           "status")  # fmt: skip
_LOOKS = ("run", "label", "n", "verdict", "artifact_rate", "artifact_rate_low", "artifact_rate_high", "repeat_rate",
          "truncated", "mean_words", "js_reading", "evidence")  # fmt: skip

SECTIONS = (
    Section(
        "study",
        "Methods over seeds",
        "One number a run from its last checkpoint; intervals are over seeds. A control differs from its subject in "
        "one setting: without it, that setting could be the whole result.",
        (),
        (
            Table(
                "contrasts",
                "Differences",
                "study_contrasts",
                _whole("study_contrasts"),
                "left less right, paired by seed; 95 % t-intervals; p adjusted for the pairs of a number (Holm).",
            ),
            Table("methods", "Means over seeds", "study_methods", _whole("study_methods"), "95 % t-intervals."),
            Table("runs", "Runs", "runs", _whole("runs")),
        ),
    ),
    Section(
        "forgetting",
        "Gain and forgetting",
        "Scores after each stage against the base. In-domain: the task of a stage; OOD: tasks never trained.",
        ("tables", "continual", "forgetting_curve", "teacher_freshness", "supervision_density", "stable_teacher"),
        (Table("metrics", "After the last stage", "forgetting_summary", _metrics),),
    ),
    Section(
        "policy",
        "Policy",
        "How far the distribution over responses moved from the base, and how much of that its success required.",
        ("collapse", "razor_plane", "kl_forgetting"),
        (
            Table("drift", "Drift over all tasks", "policy", _of_all("policy", _POLICY), "KL in nats a response."),
            Table("looks", "What the responses look like", "artifacts", _of_all("artifacts", _LOOKS)),
        ),
    ),
    Section(
        "responses",
        "Responses",
        "Cosine of the embeddings of two models' responses to the same prompt. Random pairs say what unrelated "
        "responses read; the same text reads 1.",
        ("response_drift",),
        (Table("similarity", "Similarity to the base", "similarity_summary", _of_all("similarity_summary", _SIMILAR)),),
        remarks="similarity",
    ),
    Section(
        "weights",
        "Weights",
        "How far each matrix moved from the base. Every value stands beside its null: what an update of the same "
        "size, its signs drawn at random, shows anyway.",
        ("parameter_drift", "layer_map", "float32_view"),
        (
            Table(
                "last", "Last checkpoint of each run", "spectral_summary", _last, "Median and quartiles over matrices."
            ),
            Table("trajectory", "Medians along the sequence", "spectral_summary", _trajectory),
        ),
        Explorer("spectral", _matrices, "Angles in degrees; every number's full precision shows when pointed at."),
    ),
    Section(
        "domains",
        "Domains",
        "Squared MMD between data sets, one bandwidth for all. Values below the noise floor are no distance; small "
        "negative ones are chance.",
        ("domain_distance", "domain_map", "domain_distance_reference"),
        (
            Table(
                "pairs",
                "Every pair",
                "mmd",
                _pairs,
                "Intervals: 95 %, jackknife. p-values are adjusted by Holm's method.",
            ),
        ),
        remarks="mmd",
    ),
)
"""In the order of the page."""
