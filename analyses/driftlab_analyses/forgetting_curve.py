"""Gain, forgetting and signed change against the distance of a task from what was trained.

The form of Figure 5 of arXiv 2607.01763. Added to it: the signed change, because gain and forgetting are censored at 0,
and the coefficient of the square with its interval.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.dynamics import root_axis
from driftlab_analyses.score_means import source_of
from driftlab_analyses.style import COLOURS, GREY, MARKERS, footnote, new_figure

PANELS = {"gain": "Gain (%)", "forgetting": "Forgetting (%)", "change": "Signed change (%)"}
_COLUMNS = ["what", "outcome", "run", "method", "seed", "stage", "task", "x", "y", "low", "high"]


def table(results: ResultsDir) -> pd.DataFrame:
    """Return points and fits; the rows of fits carry their c with its interval."""
    curve = results.table("curve")
    if curve.empty:
        raise ResultsError(f"{results.path}: no task has both a score and a distance, forgetting_curve shows nothing.")
    content = results.read_json("curve")
    fits = pd.DataFrame(content["fits"]).set_index(["method", "outcome"])
    found = curve[_COLUMNS].copy()
    keys = pd.MultiIndex.from_frame(found[["method", "outcome"]])
    for name, place in (("c_low", 0), ("c_high", 1)):
        intervals = fits["c_interval"] if "c_interval" in fits else pd.Series(None, index=fits.index, dtype=object)
        found[name] = intervals.map(lambda pair, place=place: _entry(pair, place)).reindex(keys).to_numpy(dtype=float)
    found["c"] = fits["c"].reindex(keys).to_numpy(dtype=float) if "c" in fits else np.nan
    return found.assign(draws=content["bootstrap"]["draws"], source=source_of(results))


def _entry(pair: object, place: int) -> float:
    value = pair[place] if isinstance(pair, list) else None
    return np.nan if value is None else float(value)


def figure(table: pd.DataFrame) -> Figure:
    """Draw three panels: points by method and trained domain, fits with their bands."""
    points = table[table["what"] == "point"]
    methods, stages = list(dict.fromkeys(points["method"])), list(dict.fromkeys(points["stage"]))
    fig = new_figure(10.5, 3.6)
    for ax, (outcome, label) in zip(fig.subplots(1, 3), PANELS.items(), strict=True):
        _panel(ax, table[table["outcome"] == outcome], methods, stages)
        ax.set_ylabel(label)
        ax.set_xlabel("Squared MMD, trained to tested")
    _legends(fig, methods, stages)
    footnote(fig, _words(table, points, methods))
    return fig


def _panel(ax: Axes, rows: pd.DataFrame, methods: list[str], stages: list[str]) -> None:
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    for i, method in enumerate(methods):
        colour = COLOURS[i % len(COLOURS)]
        own = rows[rows["method"] == method]
        fit = own[own["what"] == "fit"].sort_values("x")
        if len(fit):
            ax.fill_between(
                fit["x"], fit["low"], fit["high"], color=colour, alpha=0.14 if len(methods) < 4 else 0.07, linewidth=0
            )
            ax.plot(fit["x"], fit["y"], "--", color=colour, linewidth=1.4)
        for j, stage in enumerate(stages):
            at = own[(own["what"] == "point") & (own["stage"] == stage)]
            ax.scatter(
                at["x"], at["y"], s=30, color=colour, marker=MARKERS[j % len(MARKERS)], edgecolor="white",
                linewidth=0.5, alpha=0.85, zorder=3, clip_on=False,
            )  # fmt: skip
    values = rows.loc[rows["what"] == "point", "y"]
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 1.0)
    below = -0.04 * high if low == 0 else 1.15 * low
    ax.set_ylim(below, 1.15 * high)
    root_axis(ax)


def _legends(fig: Figure, methods: list[str], stages: list[str]) -> None:
    """Name colours on the left and markers on the right, in rows enough for both."""
    lines = [Line2D([], [], color=COLOURS[i % len(COLOURS)], linestyle="--") for i in range(len(methods))]
    marks = [Line2D([], [], color=GREY, marker=MARKERS[j % len(MARKERS)], linestyle="none") for j in range(len(stages))]
    fig.legend(lines, methods, loc="outside upper left", ncols=3, title="Method")
    fig.legend(marks, stages, loc="outside upper right", ncols=2, title="Trained on")


def _words(table: pd.DataFrame, points: pd.DataFrame, methods: list[str]) -> str:
    one = points[points["outcome"] == "change"]
    seeds = one.groupby("method")["seed"].nunique().clip(lower=1)
    counts = "; ".join(
        f"{m} {int((one['method'] == m).sum())} points" + (f", {seeds[m]} seeds" if seeds[m] > 1 else "")
        for m in methods
    ) + ("; one seed each" if (seeds == 1).all() else "")
    fits = table[table["what"] == "fit"].drop_duplicates(["method", "outcome"])
    bends = [
        f"{row['method']} {row['outcome']} {row['c']:.0f} [{row['c_low']:.0f}, {row['c_high']:.0f}]"
        for row in fits.to_dict("records")
    ]
    lines = [
        f"{counts}; {one['task'].nunique()} tasks. Each point: change during one stage. Dashed: y = a + b x + c x², "
        f"least squares; band: 95 %, {table['draws'].iloc[0]} resamples of whole tasks, cut at the axes. "
        "Axis: symmetric square root.",
        "c with its 95 % interval: " + ("; ".join(bends) or "no fit") + ". An interval that holds 0 says nothing of "
        "the bend.",
    ]
    if (one["x"] == 0).any():
        lines.append("At 0: trained and tested domain are one set in the distances, not measured apart.")
    if table["source"].iloc[0]:
        lines.append(str(table["source"].iloc[0]))
    return "\n".join(lines)
