"""What supervising the chain of thought does: scores, response length, entropy and divergence with and without it.

The form of Figure 4 of arXiv 2607.01763.
"""

import pandas as pd
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.dynamics import draw_curves, name_stages, seeds_in_words, step_curves
from driftlab_analyses.score_means import final_means, score_words
from driftlab_analyses.style import footnote, new_figure
from driftlab_analyses.teacher_freshness import distilled_runs, score_bars

MEASURES = ("completions/mean_length", "entropy", "js_distilled")


def table(results: ResultsDir) -> pd.DataFrame:
    """Return step curves of distilled runs with and without loss on the chain of thought, and their final scores.

    Only runs whose teacher has a counterpart on the other side are compared.
    """
    steps = distilled_runs(results.table("steps"))
    cot = steps["distill_cot"].map(lambda value: str(value).lower() in ("true", "1"))
    teacher = steps["teacher"].astype(str) + steps["ema_rate"].astype(str).where(steps["teacher"] == "ema", "")
    both = cot.groupby(teacher).transform("nunique") > 1
    if not both.any():
        raise ResultsError(
            f"{results.path}: expected runs with and without loss on the chain of thought under one teacher, "
            "found one kind only, supervision_density has nothing to compare."
        )
    chosen = steps[both].assign(_cot=cot[both]).sort_values("_cot", kind="stable")
    first = chosen.drop_duplicates("method")
    lines = {str(m): f"{m} (CoT {'on' if on else 'off'})" for m, on in zip(first["method"], first["_cot"], strict=True)}
    curves = step_curves(chosen.assign(line=chosen["method"].map(lines)), MEASURES)
    means = final_means(results.table("scores"), results.table("forgetting"))
    means = means[means["method"].isin(lines)]
    means = means.assign(measure="score", line=means["method"].map(lines))
    return pd.concat([curves, means], ignore_index=True)


def figure(table: pd.DataFrame) -> Figure:
    """Draw bars of the scores and one panel a curve."""
    curves, means = table[table["measure"] != "score"], table[table["measure"] == "score"]
    lines = list(dict.fromkeys(curves["line"]))
    fig = new_figure(9.0, 5.0)
    axes = fig.subplots(2, 2).flat
    score_bars(axes[0], means, lines)
    for ax, name in zip(fig.axes[1:], MEASURES, strict=True):
        draw_curves(ax, curves, name, lines)
        ax.set_xlabel("Step (iteration)")
        name_stages(ax, curves)
        ax.set_ylim(bottom=0)
    handles, labels = fig.axes[1].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)))
    said = f"{score_words(means)} Dashes: the base of each. " if len(means) else "No scores of these runs. "
    footnote(fig, f"{said}{seeds_in_words(curves)} Gaps of JS: steps without a target.")
    return fig
