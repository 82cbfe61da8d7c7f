"""The collapse along the sequence: JS to the teacher, entropy, length, repetition, artefact rate.

The form of Figure 8 of arXiv 2607.01763, which shows the JS divergence alone. A JS near zero can mean that student and
teacher agree or that there was nothing to distil: iterations without any target are left open and marked below.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.sequence_axis import Look, legend, looks, mark_stages
from driftlab_analyses.style import footnote, new_figure

STEPS = {
    "js_distilled": "JS, distilled\ntokens (nats)",
    "entropy": "Entropy\n(nats)",
    "completions/mean_length": "Length\n(tokens)",
    "repeat_rate": "Repeated\n4-grams (%)",
}
ARTIFACTS = "artifact_rate"
_LABELS = STEPS | {ARTIFACTS: "Degenerate\nresponses (%)"}
_PERCENT = ("repeat_rate", ARTIFACTS)
_BROKEN = "broken_rate"
_ALL = "all"
WINDOW = 5
"""Iterations of the running mean, which starts anew with each stage: training batches jump."""


def table(results: ResultsDir) -> pd.DataFrame:
    """Return one long table: a value an iteration from the logs, and the artefact rate of each checkpoint."""
    steps, rates = results.table("steps"), results.table("artifacts")
    found = [name for name in STEPS if name in steps and steps[name].notna().any()]
    if not found:
        raise ResultsError(f"{results.path}: none of {', '.join(STEPS)} was logged, collapse has nothing to draw.")
    keys = ["run", "method", "seed", "stage", "global_step"]
    parts = []
    for name in found:
        part = steps[keys].assign(measure=name, value=pd.to_numeric(steps[name], errors="coerce"))
        part["smooth"] = part.groupby(["run", "stage"], sort=False)["value"].transform(
            lambda values: values.rolling(WINDOW, min_periods=1).mean().where(values.notna())
        )
        parts.append(part)
    rates = rates[(rates["task"] == _ALL) & (rates["status"] == "ok") & rates["global_step"].notna()]
    parts.append(
        rates[[*keys, "label", "n", "prompts", "verdict", "first_label"]].assign(
            measure=ARTIFACTS,
            value=rates[ARTIFACTS],
            low=rates[f"{ARTIFACTS}_low"],
            high=rates[f"{ARTIFACTS}_high"],
            broken=rates[_BROKEN],
        )
    )
    return pd.concat(parts, ignore_index=True)


def figure(table: pd.DataFrame) -> Figure:
    """Draw the panels over iterations; a star marks the first checkpoint that is judged collapsed."""
    panels = [name for name in _LABELS if name in set(table["measure"])]
    fig = new_figure(6.4, 1.15 * len(panels) + 1.2)
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    runs = table.drop_duplicates("run")
    styles = looks(list(runs["run"]), list(runs["method"]))
    for ax, name in zip(axes, panels, strict=True):
        rows = table[table["measure"] == name]
        for run in runs["run"]:
            mine = rows[rows["run"] == run].sort_values("global_step")
            method = str(runs.loc[runs["run"] == run, "method"].iloc[0])
            (_rates if name == ARTIFACTS else _curve)(ax, mine, styles[run], method, name)
        if name == "js_distilled":
            _open_places(ax, rows, styles)
        ax.set_ylabel(_LABELS[name], fontsize=7.5)
        ax.set_ylim(bottom=0, top=None)
    mark_stages(list(axes), table[table["measure"] == panels[0]])
    axes[-1].set_xlabel("Iteration")
    # a method without a teacher has no line in the first panel, so the legend comes from the last
    legend(fig, axes[-1])
    footnote(fig, _caption(table))
    return fig


def _curve(ax: Axes, rows: pd.DataFrame, style: Look, label: str, name: str) -> None:
    scale = 100.0 if name in _PERCENT else 1.0
    x = rows["global_step"].to_numpy()
    ax.plot(x, scale * rows["value"], color=style["color"], linewidth=0.5, alpha=0.25)
    ax.plot(x, scale * rows["smooth"], color=style["color"], linewidth=1.4, label=label)


def _rates(ax: Axes, rows: pd.DataFrame, style: Look, label: str, name: str) -> None:
    x = rows["global_step"].to_numpy()
    ax.fill_between(x, 100 * rows["low"], 100 * rows["high"], color=style["color"], alpha=0.15, linewidth=0)
    ax.plot(
        x, 100 * rows["value"], color=style["color"], marker=style["marker"], markersize=4, linewidth=1.4, label=label
    )
    ax.plot(x, 100 * rows["broken"], color=style["color"], linewidth=1.0, linestyle=":")
    start = rows[(rows["label"] == rows["first_label"]) & rows["verdict"].isin(["partial", "collapsed"])]
    ax.plot(
        start["global_step"], 100 * start["value"], "*", color=style["color"], markersize=13, markeredgecolor="black",
        markeredgewidth=0.7, zorder=5,
    )  # fmt: skip


def _open_places(ax: Axes, rows: pd.DataFrame, styles: dict[str, Look]) -> None:
    """Mark iterations without a target by ticks under the curve, one row a run."""
    distilled = [run for run in styles if rows.loc[rows["run"] == run, "value"].notna().any()]
    for place, run in enumerate(distilled):
        mine = rows[(rows["run"] == run) & rows["value"].isna()]
        if mine.empty:
            continue
        height = np.full(len(mine), -0.05 - 0.05 * place)
        ax.plot(
            mine["global_step"], height, "|", color=styles[run]["color"], markersize=3, clip_on=False,
            transform=ax.get_xaxis_transform(),
        )  # fmt: skip


def _caption(table: pd.DataFrame) -> str:
    rates = table[table["measure"] == ARTIFACTS]
    seeds = table.groupby("method", sort=False)["run"].nunique().max()
    runs = "one run a method" if seeds == 1 else f"up to {seeds} runs a method, each drawn"
    sizes = " to ".join(dict.fromkeys(f"{n:.0f}" for n in (rates["n"].min(), rates["n"].max())))
    gaps = table[(table["measure"] == "js_distilled") & table["value"].isna()]
    logged = table[table["measure"] == "js_distilled"].groupby("run")["value"].count() > 0
    marked = gaps["run"].isin(logged[logged].index).any() if len(logged) else False
    lines = [
        f"Curves: training batches, mean over {WINDOW} iterations (faint: each); {runs}.",
        f"Last panel: checkpoints, {sizes} sampled responses ({rates['prompts'].max():.0f} prompts), "
        "band: 95 % Wilson interval over prompts.",
        "Degenerate: loops, repeats a format marker, or is empty. Dotted: broken, that is empty, repeating up to the "
        "length limit, or looping ten times.",
        "Star: first checkpoint where most responses, of one task at least, are broken."
        if rates["verdict"].isin(["partial", "collapsed"]).any()
        else "At no checkpoint are most responses broken, in any task: no collapse.",
    ]
    if marked:
        lines[0] += " Ticks under JS: iterations without any target."
    return "\n".join(lines)
