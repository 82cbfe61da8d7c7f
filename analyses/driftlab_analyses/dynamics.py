"""Curves along the training steps, shared by the figures that show them: mean over seeds, range, stage boundaries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftlab_analyses.style import GREY, look

WINDOW = 5
"""Steps of the running mean that is drawn."""
NAMES = {
    "reward": "Reward",
    "js_distilled": "JS, distilled tokens",
    "js_response": "JS, all tokens",
    "entropy": "Entropy (nats)",
    "completions/mean_length": "Length (tokens)",
    "teacher_distance": "Teacher distance",
}
"""Columns of the step log as axes call them."""
_MOST_TICKS = 12  # of a root axis, whose small numbers lie close together
_KEYS = ["method", "line", "stage", "global_step", "measure"]


def teacher_name(row: Mapping[Any, Any]) -> str:
    """Return a teacher as legends call it.

    Examples
    --------
    >>> teacher_name({"teacher": "ema", "ema_rate": 0.005})
    'EMA 0.5 %'
    >>> teacher_name({"teacher": "stable", "teacher_k": 10, "teacher_gamma": 0.4})
    'stable, k 10, γ 0.4'
    """
    teacher = str(row["teacher"])
    if teacher == "ema":
        return f"EMA {100 * float(row['ema_rate']):.3g} %"
    if teacher == "stable":
        return f"stable, k {float(row['teacher_k']):g}, γ {float(row['teacher_gamma']):.2g}"
    return {"frozen": "frozen, 0 %"}.get(teacher, teacher)


def step_curves(steps: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Return running means of step measures over the seeds of each line.

    Parameters
    ----------
    steps : DataFrame
        The table ``steps`` with a column ``line`` that names the line a run belongs to.
    measures : sequence of str
        Columns; those that are missing or empty are left out.

    Returns
    -------
    DataFrame
        ``method, line, stage, global_step, measure, mean, low, high, n_seeds``: mean and range over the runs of a
        line. A step that a run has no number for stays a gap of that run.
    """
    parts = []
    for name in measures:
        if name not in steps or steps[name].isna().all():
            continue
        values = pd.to_numeric(steps[name])
        smooth = values.groupby([steps["run"], steps["stage"]], sort=False).transform(_running)
        rows = steps.assign(measure=name, value=smooth.where(values.notna()))
        found = rows.groupby(_KEYS, sort=False, dropna=False)["value"].agg(["mean", "min", "max", "count"])
        parts.append(found.reset_index())
    if not parts:
        return pd.DataFrame(columns=[*_KEYS, "mean", "low", "high", "n_seeds"])
    return pd.concat(parts, ignore_index=True).rename(columns={"min": "low", "max": "high", "count": "n_seeds"})


def _running(values: "pd.Series[float]") -> "pd.Series[float]":
    return values.rolling(WINDOW, center=True, min_periods=1).mean()


def draw_curves(ax: Axes, table: pd.DataFrame, measure: str, lines: Sequence[str]) -> None:
    """Draw one measure, a line and a band for each of ``lines``, and where stages end."""
    rows = table[table["measure"] == measure]
    for name in lines:
        line = rows[rows["line"] == name].sort_values("global_step")
        if line.empty:
            continue
        colour = look(lines.index(name))["color"]
        x = line["global_step"].to_numpy(dtype=float)
        low, high = line["low"].to_numpy(dtype=float), line["high"].to_numpy(dtype=float)
        if (line["n_seeds"] > 1).any():
            ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(x, line["mean"].to_numpy(dtype=float), color=colour, linewidth=1.3, label=name)
    ax.set_ylabel(NAMES.get(measure, measure))
    mark_stages(ax, table)


def mark_stages(ax: Axes, table: pd.DataFrame) -> None:
    """Mark where stages end, unless the lines had different ones."""
    ends = stage_ends(table)
    for end in list(ends.values())[:-1]:
        ax.axvline(end + 0.5, color=GREY, linestyle=":", linewidth=0.8)


def stage_ends(table: pd.DataFrame) -> dict[str, float]:
    """Return the last step of each stage in order; empty where the lines had different ones."""
    ends = table.pivot_table(index="line", columns="stage", values="global_step", aggfunc="max", sort=False)
    longest = ends.max().sort_values()
    finished = ends.ge(ends.max(axis=1).to_numpy()[:, None], axis=0)  # a run may have stopped in its last stage
    if (ends.ne(longest) & ends.notna() & ~finished).any(axis=None):
        return {}
    return {str(stage): float(end) for stage, end in longest.items()}


def name_stages(ax: Axes, table: pd.DataFrame) -> None:
    """Write the stages above the top panel."""
    start = 0.0
    for stage, end in stage_ends(table).items():
        ax.text((start + end) / 2, 1.02, stage, transform=ax.get_xaxis_transform(), ha="center", fontsize=7, color=GREY)
        start = end


def seeds_in_words(table: pd.DataFrame) -> str:
    """Say how many seeds stand behind the lines, and what their band is."""
    counts = sorted({int(n) for n in table["n_seeds"] if n > 0})
    if counts and counts[-1] > 1:
        return f"Line: mean over {_spread(counts)} seeds; band: their range; running mean over {WINDOW} steps."
    return f"One seed a line, so no band; running mean over {WINDOW} steps."


def _spread(counts: Sequence[int]) -> str:
    return f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def signed_root(values: np.ndarray) -> np.ndarray:
    """Return the symmetric square root, the axis of relative changes: sign(y) √|y|."""
    return np.asarray(np.sign(values) * np.sqrt(np.abs(values)))


def root_axis(ax: Axes) -> None:
    """Scale a y axis by the symmetric square root; set its limits first."""
    ax.set_yscale("function", functions=(signed_root, lambda values: np.sign(values) * np.square(values)))
    ax.set_yticks(root_ticks(*ax.get_ylim()))
    ax.minorticks_off()


def root_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two limits, zero first and then from the ends inward, none too near another.

    Examples
    --------
    >>> root_ticks(-100, 700)
    [-100, -20, 0, 20, 100, 200, 500]
    """
    sizes = [size * 10**power for power in range(4, -3, -1) for size in (5, 2, 1)]
    inside = [tick for tick in [0, *(sign * size for size in sizes for sign in (1, -1))] if low <= tick <= high]
    bottom, top = signed_root(np.array([low, high]))
    places = dict(zip(inside, signed_root(np.array(inside)), strict=True))
    kept: list[float] = []
    for tick, place in places.items():
        if all(abs(place - places[other]) >= (top - bottom) / _MOST_TICKS for other in kept):
            kept.append(tick)
    return sorted(kept)


def legend_above(figure: Figure, ax: Axes, columns: int) -> None:
    """Put one legend over all panels."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, max(len(labels), 1)))
