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


SECTIONS = (
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
    ),
)
"""In the order of the page."""
