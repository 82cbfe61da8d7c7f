"""Weight drift along the sequence: spectral shift, largest angle, mask overlap, mask-update overlap.

The form of Figure 7 (a, b) of arXiv 2607.01763: four stacked panels, one line a run. Added to it: each line's null,
the random level of the last panel, and the numeric error of the first three.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.seeds import fold, methods_of, seeds_note
from driftlab_analyses.style import GREY, footnote, look, new_figure

PANELS = {
    "nss": ("NSS", 1.0),
    "max_angle_left_deg": ("Max PA (°)", 1.0),
    "mask_overlap": ("PM overlap (%)", 100.0),
    "mask_update_iou": ("PM update (%)", 100.0),
}
_COLUMNS = ["run", "label", "stage", "step", "order", "measure", "n", "mean", "median", "q25", "q75", "error"]
_NULLS = ["null_median", "null_q25", "null_q75", "verdict"]
_ALL_TICKS = 8
_LETTERS = 68  # that fit side by side in the legend, six of them for a line's sample


def table(results: ResultsDir) -> pd.DataFrame:
    """Return the model-wide summary of the four measures, one row a checkpoint and measure.

    In a study with several seeds a line is a method: medians become means over seeds, and ``low`` and ``high`` their
    range.
    """
    summary = results.table("spectral_summary")
    model = summary[(summary["group_by"] == "model") & (summary["order"] > 0)]
    chosen = model[model["measure"].isin(PANELS)][_COLUMNS + _NULLS].copy()
    if chosen.empty:
        raise ResultsError(
            f"{results.path}: none of {', '.join(PANELS)} was measured, parameter_drift has nothing to draw."
        )
    methods = methods_of(results)
    if methods:
        chosen = fold(chosen, methods, ["order", "label", "measure"], "median")
    return chosen.reset_index(drop=True)


def figure(table: pd.DataFrame) -> Figure:
    """Draw the four panels: median over matrices, band between the quartiles (or seeds), dotted the null."""
    panels = [name for name in PANELS if name in set(table["measure"])]
    fig = new_figure(5.6, 1.25 * len(panels) + 1.0)
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    runs = list(dict.fromkeys(table["run"]))
    for ax, name in zip(axes, panels, strict=True):
        _panel(ax, table[table["measure"] == name], runs, *PANELS[name])
    _ticks(axes[-1], table)
    handles, labels = axes[0].get_legend_handles_labels()
    columns = max(1, min(4, len(runs), _LETTERS // (max(map(len, runs)) + 6)))
    fig.legend(handles, labels, loc="outside upper center", ncols=columns)
    null = "; dotted: null (what an update of this size shows anyway)" if table["null_median"].notna().any() else ""
    counts = sorted(set(table["n"]))
    matrices = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = int(table["n_seeds"].max()) if "n_seeds" in table else 0
    alone = len(set(table["order"])) == 1
    band = f", {seeds_note(seeds)}" if seeds else "; bar: quartiles" if alone else "; band: quartiles"
    footnote(fig, f"{'Point' if alone else 'Line'}: median over {matrices} matrices{band}{null}.")
    return fig


def _panel(ax: Axes, rows: pd.DataFrame, runs: list[str], label: str, scale: float) -> None:
    for run in runs:
        line = rows[rows["run"] == run].sort_values("order")
        style = look(runs.index(run))
        x = line["order"].to_numpy()
        seeds = "n_seeds" in line
        low, high = ("low", "high") if seeds else ("q25", "q75")
        if len(line) == 1:
            _point(ax, line.iloc[0], scale, (low, high), runs.index(run) - (len(runs) - 1) / 2, style, run)
            continue
        ax.fill_between(x, scale * line[low], scale * line[high], color=style["color"], alpha=0.18, linewidth=0)
        if line["null_median"].notna().any():
            if not seeds:
                under, over = scale * line["null_q25"], scale * line["null_q75"]
                ax.fill_between(x, under, over, color=style["color"], alpha=0.09, linewidth=0)
            ax.plot(x, scale * line["null_median"], ":", color=style["color"], linewidth=1.4)
        ax.plot(x, scale * line["median"], **style, markersize=5, linewidth=1.6, label=run)
    ax.set_ylabel(label)
    ax.yaxis.tick_right()
    ax.yaxis.set_major_locator(MaxNLocator(4))
    if label == "NSS":
        ax.yaxis.set_major_formatter(FuncFormatter(_scientific))
    error = scale * rows["error"].max()
    if np.isfinite(error) and error > 0:
        text = f"numeric error $\\leq$ {_scientific(error)}"
        height, align = (0.06, "bottom") if label.startswith("PM overlap") else (0.94, "top")  # clear of the curve
        ax.annotate(text, (0.01, height), xycoords="axes fraction", fontsize=6, color=GREY, va=align)


def _point(
    ax: Axes, row: "pd.Series[Any]", scale: float, ends: tuple[str, str], side: float, style: dict[str, Any], run: str
) -> None:
    """Draw a run of one checkpoint, where lines and bands have no width: a bar, and a dash for the null."""
    x = row["order"] + 0.08 * side
    ax.plot([x, x], [scale * row[end] for end in ends], "-", color=style["color"], alpha=0.35, linewidth=4)
    if pd.notna(row["null_median"]):
        level = scale * row["null_median"]
        ax.plot([x - 0.035, x + 0.035], [level, level], ":", color=style["color"], linewidth=1.4)
    ax.plot([x], [scale * row["median"]], **style, markersize=5, linestyle="none", label=run)


def _ticks(ax: Axes, table: pd.DataFrame) -> None:
    """Mark every checkpoint; name all of a few, else the last of each stage."""
    alone = len(set(table["order"])) == 1
    labels = table.groupby("order")["label"].agg(lambda found: ("\n" if alone else " | ").join(dict.fromkeys(found)))
    stages = table.groupby("order")["stage"].first()
    last = stages.ne(stages.shift(-1)).to_numpy()
    shown = [text if len(labels) <= _ALL_TICKS or end else "" for text, end in zip(labels, last, strict=True)]
    turned: dict[str, Any] = {} if alone else {"rotation": 20, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(list(labels.index), shown, **turned)
    if alone:
        ax.set_xlim(labels.index[0] - 0.5, labels.index[0] + 0.5)


def _scientific(value: float, position: object = None) -> str:
    if value == 0:
        return "0"
    exponent = int(np.floor(np.log10(abs(value))))
    return f"{value / 10.0**exponent:.1f}e{exponent}"
