"""What a fresher teacher does: scores by teacher, entropy and JS along the steps.

The form of Figure 2 of arXiv 2607.01763: (a) scores by the rate of the teacher's moving average, (b) entropy and
Jensen-Shannon divergence curves.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.dynamics import draw_curves, name_stages, seeds_in_words, step_curves, teacher_name
from driftlab_analyses.score_means import final_means, score_words
from driftlab_analyses.style import footnote, look, new_figure

MEASURES = ("entropy", "js_distilled")
_GROUPS = ("trained", "never trained")


def table(results: ResultsDir) -> pd.DataFrame:
    """Return step curves of the distilled runs and, as rows with ``measure`` ``score``, their final scores."""
    steps = results.table("steps")
    distilled = distilled_runs(steps)
    if distilled.empty:
        raise ResultsError(
            f"{results.path}: no run was distilled from a teacher, teacher_freshness has nothing to draw."
        )
    if len({teacher_name(row) for row in distilled.drop_duplicates("method").to_dict("records")}) < 2:
        raise ResultsError(f"{results.path}: all distilled runs have one teacher, teacher_freshness compares nothing.")
    lines = named_lines(distilled)
    curves = step_curves(distilled.assign(line=distilled["method"].map(lines)), MEASURES)
    means = final_means(results.table("scores"), results.table("forgetting"))
    means = means[means["method"].isin(lines)]
    means = means.assign(measure="score", line=means["method"].map(lines))
    return pd.concat([curves, means], ignore_index=True)


def distilled_runs(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of runs that log a divergence from a teacher, the stalest teacher first."""
    if "js_distilled" not in steps:
        return steps.iloc[:0]
    runs = steps.groupby("run")["js_distilled"].transform(lambda values: values.notna().any()).astype(bool)
    rate = steps["ema_rate"].astype(float).where(steps["teacher"] != "frozen", -1.0)
    place = steps["teacher"].map({"frozen": 0, "ema": 1, "stable": 2}).fillna(3)
    return steps.assign(_place=place, _rate=rate)[runs].sort_values(["_place", "_rate"], kind="stable")


def named_lines(steps: pd.DataFrame) -> dict[str, str]:
    """Return for each method the words of its legend: its name, and its teacher where that is not in the name."""
    first = steps.drop_duplicates("method")
    return {str(row["method"]): f"{row['method']} ({teacher_name(row)})" for row in first.to_dict("records")}


def figure(table: pd.DataFrame) -> Figure:
    """Draw bars of the scores beside the curves."""
    curves, means = table[table["measure"] != "score"], table[table["measure"] == "score"]
    lines = list(dict.fromkeys(curves["line"]))
    measures = [name for name in MEASURES if name in set(curves["measure"])]
    fig = new_figure(9.6, 4.2)
    grid = fig.add_gridspec(len(measures), 2, width_ratios=[1, 1.6])
    score_bars(fig.add_subplot(grid[:, 0]), means, lines)
    top: Axes | None = None
    for i, name in enumerate(measures):
        ax = fig.add_subplot(grid[i, 1], sharex=top)
        draw_curves(ax, curves, name, lines)
        ax.set_ylim(bottom=0)
        if top is None:
            top = ax
            name_stages(ax, curves)
        if i < len(measures) - 1:
            ax.tick_params(labelbottom=False)
    ax.set_xlabel("Step (iteration)")
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=min(3, len(labels)))
    said = f"{score_words(means)} Dashes: the base of each. " if len(means) else "No scores of these runs. "
    gaps = "Gaps of JS: steps without a target."
    footnote(fig, f"{said}{seeds_in_words(curves)} {gaps}")
    return fig


def score_bars(ax: Axes, means: pd.DataFrame, lines: list[str]) -> None:
    """Draw the final means of each line, trained and never trained tasks side by side; a dash is the base of each."""
    for place, group in enumerate(_GROUPS):
        for i, line in enumerate(lines):
            found = means[(means["line"] == line) & (means["group"] == group)]
            if found.empty:
                continue
            row = found.iloc[0]
            x = place * (len(lines) + 1) + i
            ax.bar(x, row["mean"], width=0.85, color=look(i)["color"], zorder=2)
            bars = np.nan_to_num([[row["mean"] - row["low"]], [row["high"] - row["mean"]]]).clip(min=0)
            ax.errorbar(x, row["mean"], bars, fmt="none", ecolor="#333333", elinewidth=0.9, capsize=2, zorder=3)
            base = means.loc[(means["line"] == line) & (means["group"] == f"base, {group}"), "mean"]
            ax.plot([x - 0.47, x + 0.47], [base.iloc[0]] * 2, "--", color="black", linewidth=1.1, zorder=4)
    middles = [place * (len(lines) + 1) + (len(lines) - 1) / 2 for place in range(len(_GROUPS))]
    ax.set_xticks(middles, [f"{group}\ntasks" for group in _GROUPS])
    ax.grid(False, axis="x")
    ax.set_ylabel("Score after the last stage (%)")
