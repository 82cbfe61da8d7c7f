"""Runs along their iterations: one look a run, stages marked, seeds of one method drawn alike."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftlab_analyses.style import GREY, look

Look = dict[str, Any]


def looks(runs: Sequence[str], methods: Sequence[str]) -> dict[str, Look]:
    """Return colour and marker of each run: one of each a method, so seeds of one method look alike."""
    order = list(dict.fromkeys(methods))
    return {run: look(order.index(method)) for run, method in zip(runs, methods, strict=True)}


def stage_ends(rows: pd.DataFrame) -> dict[str, float]:
    """Return the last iteration of each stage, in order; rows have ``stage`` and ``global_step``."""
    trained = rows[rows["global_step"] > 0]
    return {
        str(stage): float(step) for stage, step in trained.groupby("stage", sort=False)["global_step"].max().items()
    }


def mark_stages(axes: Sequence[Axes], rows: pd.DataFrame) -> None:
    """Draw a line at each stage boundary of all panels, and name the stages above the first."""
    ends = stage_ends(rows)
    start = 0.0
    for i, (stage, end) in enumerate(sorted(ends.items(), key=lambda item: item[1])):
        for ax in axes:
            if i < len(ends) - 1:
                ax.axvline(end, color=GREY, linewidth=0.7, linestyle=(0, (4, 3)), zorder=0.5)
        axes[0].annotate(
            stage, ((start + end) / 2, 1.02), xycoords=("data", "axes fraction"), ha="center", fontsize=7, color=GREY
        )
        start = end


def legend(figure: Figure, ax: Axes, columns: int = 4) -> None:
    """Put one legend above all panels, each method once."""
    handles, labels = ax.get_legend_handles_labels()
    first = dict(reversed(list(zip(labels, handles, strict=True))))
    names = list(dict.fromkeys(labels))
    figure.legend([first[name] for name in names], names, loc="outside upper center", ncols=min(columns, len(names)))
