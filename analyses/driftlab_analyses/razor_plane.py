"""Success against drift: how far each checkpoint is from the base, and how far its success had to take it.

The curve is the least KL at which any policy reaches a success rate, kl(s‖p0) (arXiv 2607.01763): what lies to its
right moved further than it needed to.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import rel_entr

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.sequence_axis import Look, looks
from driftlab_analyses.style import footnote, new_figure

_COLUMNS = [
    "run", "method", "seed", "label", "stage", "order", "global_step", "task", "n", "prompts", "kl_new_to_base",
    "kl_new_to_base_se", "success", "success_se", "success_base", "kl_bernoulli", "excess_drift", "excess_drift_low",
    "excess_drift_high",
]  # fmt: skip


def table(results: ResultsDir) -> pd.DataFrame:
    """Return the checkpoints of the tasks that were trained on, each a panel."""
    found = results.table("policy")
    trained = [stage for stage in found["stage"].dropna().unique() if stage in set(found["task"])]
    wanted = trained or [task for task in found["task"].unique() if task != "all"][:4]
    kept = found[(found["status"] == "ok") & found["task"].isin(wanted) & found["kl_new_to_base"].notna()]
    kept = kept[kept["success"].notna() & kept["success_base"].notna()]
    if kept.empty:
        raise ResultsError(f"{results.path}: no checkpoint has both a KL and a success rate.")
    place = {task: i for i, task in enumerate(wanted)}
    order = kept["task"].map(place)
    return (
        kept.assign(_place=order).sort_values("_place", kind="stable").reindex(columns=_COLUMNS).reset_index(drop=True)
    )


def figure(table: pd.DataFrame) -> Figure:
    """Draw one panel a task: a line a run through its checkpoints, the base in black, the least KL as a curve."""
    tasks = list(dict.fromkeys(table["task"]))
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    fig = new_figure(3.4 * columns + 0.4, 2.5 * lines + 1.1)
    axes = fig.subplots(lines, columns, squeeze=False, sharey=True)
    runs = table.drop_duplicates("run")
    styles = looks(list(runs["run"]), list(runs["method"]))
    for ax, task in zip(axes.flat, tasks, strict=False):
        rows = table[table["task"] == task]
        for run in runs["run"]:
            _trail(ax, rows[rows["run"] == run].sort_values("global_step"), styles[run])
        for base in sorted(set(rows["success_base"].round(6))):
            _least(ax, base)
        ax.set_title(task, fontsize=9)
        ax.set_xscale("symlog", linthresh=0.1, linscale=0.5)
        ax.set_xlim(left=0)
        ax.set_ylim(-0.03, 1.03)
    for ax in list(axes.flat)[len(tasks) :]:
        ax.set_visible(False)
    for ax in axes[-1]:
        ax.set_xlabel("KL to base (nats a response)")
    for ax in axes[:, 0]:
        ax.set_ylabel("Success")
    handles = {
        str(method): axes.flat[0].plot([], [], **styles[run], linewidth=1.2, markersize=4)[0]
        for run, method in zip(runs["run"], runs["method"], strict=True)
    }
    handles["least KL for that success"] = axes.flat[0].plot([], [], color="black", linewidth=1.2)[0]
    fig.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=min(3, len(handles)))
    sizes = sorted(set(table["n"]))
    count = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    footnote(
        fig,
        f"A point: one checkpoint, {count} responses to {table['prompts'].max()} prompts, sampled by it; a line joins "
        "one run's checkpoints in order;\nlarge: its last. Bars: standard errors over prompts. Curve: kl(success ‖ "
        "success of the base), success pooled over prompts, one a base; axis linear below 0.1.",
    )
    return fig


def _trail(ax: Axes, rows: pd.DataFrame, style: Look) -> None:
    x, y = rows["kl_new_to_base"].to_numpy(), rows["success"].to_numpy()
    ax.plot(x, y, color=style["color"], linewidth=0.8, alpha=0.6)
    ax.errorbar(
        x, y, xerr=rows["kl_new_to_base_se"], yerr=rows["success_se"], fmt="none", ecolor=style["color"],
        elinewidth=0.6, alpha=0.35,
    )  # fmt: skip
    ax.plot(x[1:], y[1:], style["marker"], color=style["color"], markersize=3.5)
    ax.plot(x[-1:], y[-1:], style["marker"], color=style["color"], markersize=8, markeredgecolor="black")
    ax.plot(x[:1], y[:1], "o", color="black", markersize=5, zorder=5)


def _least(ax: Axes, base: float) -> None:
    """Draw kl(s‖p0) for all s; nothing for a base that always or never succeeds."""
    if not 0 < base < 1:
        return
    s = np.linspace(0, 1, 401)
    ax.plot(rel_entr(s, base) + rel_entr(1 - s, 1 - base), s, color="black", linewidth=1.2, zorder=4)
