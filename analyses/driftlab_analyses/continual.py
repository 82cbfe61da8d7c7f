"""Relative performance along a sequence of domains, and on tasks that were never trained.

The form of Figure 6 of arXiv 2607.01763: for each method the trained tasks from their own stage on with the mean over
untrained ones, and bars of the untrained tasks after the last stage. Added to it: intervals.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.dynamics import root_axis
from driftlab_analyses.score_means import source_of
from driftlab_analyses.style import COLOURS, MARKERS, footnote, new_figure

OOD = "OOD"
_PURPLE = "#c58ae6"
_PER_ROW = 2
_COLUMNS = ["panel", "method", "stage_index", "label", "task", "mean", "low", "high", "n_seeds", "n_tasks", "band"]


def table(results: ResultsDir) -> pd.DataFrame:
    """Return the relative change of every line and bar, in per cent of the base.

    ``band`` is ``seeds`` where ``low`` and ``high`` are the range over seeds, ``questions`` where they are the 95 %
    interval of one run.
    """
    rows = results.table("forgetting")
    ends = rows[rows["stage_end"].astype(bool) & rows["change"].notna() & (rows["stage_index"] > 0)]
    if ends.empty:
        raise ResultsError(f"{results.path}: no end of a stage has scores and a base, continual has nothing to draw.")
    trained = ends[ends["kind"].isin(["in-domain", "trained-before"])]
    untrained = ends[ends["kind"] == "ood"]
    last = untrained["stage_index"] == untrained.groupby("method")["stage_index"].transform("max")
    parts = [_over_seeds(trained, "lines", ["task"]), _mean_over_tasks(untrained)]
    parts.append(_over_seeds(untrained[last], "bars", ["task"]))
    found = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return found.reindex(columns=_COLUMNS).assign(source=source_of(results))


def _over_seeds(rows: pd.DataFrame, panel: str, by: Sequence[str]) -> pd.DataFrame:
    grouped = rows.groupby(["method", "stage_index", "label", *by], sort=False)
    found = grouped.agg(
        mean=("change", "mean"), low=("change", "min"), high=("change", "max"), n_seeds=("run", "nunique"),
        own_low=("change_low", "mean"), own_high=("change_high", "mean"),
    ).reset_index()  # fmt: skip
    alone = found["n_seeds"] == 1
    found["low"] = found["low"].where(~alone, found["own_low"])
    found["high"] = found["high"].where(~alone, found["own_high"])
    return found.assign(panel=panel, n_tasks=1, band=np.where(alone, "questions", "seeds"))


def _mean_over_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over the untrained tasks that every run has after its last stage, where all of them are known.

    One run gets no interval: its tasks are no sample of others.
    """
    last = rows[rows["stage_index"] == rows.groupby("run")["stage_index"].transform("max")]
    seen = last.groupby("task")["run"].nunique()
    common = seen.index[seen == rows["run"].nunique()]
    if common.empty:
        return pd.DataFrame(columns=_COLUMNS)
    keys = ["method", "stage_index", "label", "run"]
    shared = rows[rows["task"].isin(common)].groupby(keys, sort=False)
    means = shared.agg(change=("change", "mean"), n_tasks=("task", "nunique")).reset_index()
    means = means[means["n_tasks"] == len(common)]
    found = means.groupby(keys[:-1], sort=False).agg(
        mean=("change", "mean"), low=("change", "min"), high=("change", "max"), n_seeds=("run", "nunique"),
        n_tasks=("n_tasks", "max"),
    ).reset_index()  # fmt: skip
    return found.assign(panel="lines", task=OOD, band="seeds")


def figure(table: pd.DataFrame) -> Figure:
    """Draw lines and bars of each method, two methods a row, all on one axis."""
    methods = list(dict.fromkeys(table["method"]))
    columns = min(_PER_ROW, len(methods))
    rows = -(-len(methods) // columns)
    fig = new_figure(5.2 * columns, 3.1 * rows + 0.7)
    axes = fig.subplots(rows, 2 * columns, sharey=True, squeeze=False)
    tasks = [task for task in dict.fromkeys(table.loc[table["panel"] == "lines", "task"]) if task != OOD]
    shown = table[["mean", "low", "high"]]
    low, high = min(float(shown.min().min()), -1.0), max(float(shown.max().max()), 1.0)
    axes[0, 0].set_ylim(1.2 * low, 1.2 * high)
    root_axis(axes[0, 0])
    for ax in axes.flat:
        ax.set_visible(False)
    for i, method in enumerate(methods):
        pair = axes[i // columns, 2 * (i % columns) : 2 * (i % columns) + 2]
        own = table[table["method"] == method]
        _lines(pair[0], own[own["panel"] == "lines"], tasks, method)
        _bars(pair[1], own[own["panel"] == "bars"], method)
        if i % columns == 0:
            pair[0].set_ylabel("Relative performance (%)")
    handles: dict[str, Any] = {}
    for ax in axes.flat:
        found, labels = ax.get_legend_handles_labels()
        handles = dict(zip(labels, found, strict=True)) | handles
    names = [name for name in [*tasks, OOD] if name in handles]
    fig.legend([handles[name] for name in names], names, loc="outside upper center", ncols=min(8, len(names)))
    footnote(fig, "\n".join(_words(table)))
    return fig


def _lines(ax: Axes, rows: pd.DataFrame, tasks: list[str], method: str) -> None:
    ax.set_visible(True)
    ax.axhline(0, color="black", linewidth=1)
    stages = sorted(set(rows["stage_index"]))
    drawn = [task for task in [*tasks, OOD] if task in set(rows["task"])]
    for place, task in enumerate(drawn):
        line = rows[rows["task"] == task].sort_values("stage_index")
        i = tasks.index(task) if task in tasks else -1
        style: dict[str, Any] = (
            {"color": COLOURS[i], "marker": MARKERS[i]} if i >= 0 else {"color": _PURPLE, "marker": "D"}
        )
        # A small shift keeps the error bars of different tasks apart.
        x = line["stage_index"].to_numpy(dtype=float) + 0.05 * (place - (len(drawn) - 1) / 2)
        low, mean, high = (line[name].to_numpy(dtype=float) for name in ("low", "mean", "high"))
        bars = np.nan_to_num(np.stack([mean - low, high - mean]).clip(min=0))
        ax.errorbar(x, mean, bars, **style, markersize=5, linewidth=1.6, elinewidth=0.8, label=task)
    ax.set_xticks(stages, [f"{stage:.0f}" for stage in stages])
    ax.set_xlim(min(stages, default=0) - 0.4, max(stages, default=1) + 0.4)
    ax.set_xlabel("Stage learned")
    ax.set_title(f"{method}: trained", fontsize=9)


def _bars(ax: Axes, rows: pd.DataFrame, method: str) -> None:
    ax.set_visible(True)
    ax.axhline(0, color="black", linewidth=1)
    x = np.arange(len(rows))
    low, mean, high = (rows[name].to_numpy(dtype=float) for name in ("low", "mean", "high"))
    ax.bar(x, mean, color=_PURPLE, width=0.75, zorder=2)
    if np.isfinite(low).any():
        bars = np.nan_to_num(np.stack([mean - low, high - mean]).clip(min=0))
        ax.errorbar(x, mean, bars, fmt="none", ecolor="#444444", elinewidth=0.9, capsize=2, zorder=3)
    ax.set_xticks(x, list(rows["task"]), rotation=50, ha="right", rotation_mode="anchor", fontsize=7.5)
    ax.set_title(f"{method}: never trained", fontsize=9)
    if rows.empty:
        ax.text(0.5, 0.5, "no such task", transform=ax.transAxes, ha="center", va="center")


def _words(table: pd.DataFrame) -> list[str]:
    bands = set(table.loc[table["task"] != OOD, "band"])
    known = table.loc[table["band"] == "questions", "low"].notna().any()
    counts = sorted(set(table["n_seeds"]))
    seeds = f"{counts[0]:.0f}" if len(counts) == 1 else f"{counts[0]:.0f} to {counts[-1]:.0f}"
    said = []
    if "seeds" in bands:
        said.append(f"points and bars: means over {seeds} seeds, whiskers: their range")
    if "questions" in bands:
        said.append(
            "one seed: whiskers are 95 % intervals over the evaluation questions and say nothing of other seeds"
            if known
            else "one seed, and no uncertainty was given with the scores"
        )
    number = table.loc[table["task"] == OOD, "n_tasks"]
    ood = f" OOD: mean over {number.max():.0f} tasks that no stage trains and every run has." if len(number) else ""
    axis = "Axis: symmetric square root."
    source = [str(table["source"].iloc[0])] if table["source"].iloc[0] else []
    return [f"Change of the score in % of the base's. {'; '.join(said).capitalize()}.{ood} {axis}", *source]
