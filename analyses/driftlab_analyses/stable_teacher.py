"""Training dynamics under a frozen teacher and under one that is restarted and frozen again.

The form of Figure 3 of arXiv 2607.01763: reward, divergence, entropy and length along the steps; ticks mark where the
restarted teacher moved.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.dynamics import draw_curves, legend_above, name_stages, seeds_in_words, step_curves
from driftlab_analyses.style import COLOURS, footnote, new_figure
from driftlab_analyses.teacher_freshness import distilled_runs, named_lines

MEASURES = ("reward", "js_distilled", "entropy", "completions/mean_length")


def table(results: ResultsDir) -> pd.DataFrame:
    """Return step curves of runs with a frozen or a restarted teacher; ``teacher_k`` is the steps between restarts."""
    steps = distilled_runs(results.table("steps"))
    chosen = steps[steps["teacher"].isin(["frozen", "stable"])]
    if "stable" not in set(chosen["teacher"]):
        raise ResultsError(
            f"{results.path}: no run has a teacher that restarts (stable), stable_teacher shows nothing."
        )
    lines = named_lines(chosen)
    curves = step_curves(chosen.assign(line=chosen["method"].map(lines)), MEASURES)
    stable = chosen[chosen["teacher"] == "stable"].drop_duplicates("method")
    every = {lines[str(row["method"])]: float(row["teacher_k"]) for row in stable.to_dict("records")}
    return curves.assign(teacher_k=curves["line"].map(every))


def figure(table: pd.DataFrame) -> Figure:
    """Draw one panel a measure."""
    lines = list(dict.fromkeys(table["line"]))
    measures = [name for name in MEASURES if name in set(table["measure"])]
    fig = new_figure(9.0, 4.6)
    axes = fig.subplots(2, 2, sharex=True).flat
    for ax, name in zip(axes, measures, strict=False):
        draw_curves(ax, table, name, lines)
        _restarts(ax, table, lines)
        if name.startswith("js"):
            ax.set_ylim(bottom=0)
    axes = fig.axes
    for ax in axes[:2]:
        name_stages(ax, table)
    for ax in axes[2:]:
        ax.set_xlabel("Step (iteration)")
    for ax in axes[len(measures) :]:
        ax.set_visible(False)
    legend_above(fig, axes[0], 3)
    footnote(fig, f"{seeds_in_words(table)} Ticks at the bottom: the teacher moves. Gaps of JS: no target.")
    return fig


def _restarts(ax: Axes, table: pd.DataFrame, lines: list[str]) -> None:
    last = table["global_step"].max()
    for name, every in table.dropna(subset=["teacher_k"]).groupby("line")["teacher_k"].first().items():
        colour = COLOURS[lines.index(str(name)) % len(COLOURS)]
        moves = [step for step in range(1, int(last) + 1) if step % every == 0]
        ax.plot(moves, [0.0] * len(moves), "|", color=colour, markersize=6, transform=ax.get_xaxis_transform())
