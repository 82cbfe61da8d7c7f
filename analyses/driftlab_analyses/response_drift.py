"""How far responses moved from the base: split violins of their similarity, one place of the sequence beside the other.

The form of Figure 7 (c, d) of arXiv 2607.01763. Added to it: the level of random pairs and of the base under another
seed, and the share of responses that did not change at all.
"""

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.style import COLOURS, GREY, footnote, new_figure

_COLUMNS = ["run", "label", "order", "task", "id", "similarity"]
_LEVELS = {"random": ("random pairs", ":"), "other_seed": ("base, other seed", "-.")}


def table(results: ResultsDir) -> pd.DataFrame:
    """Return one row for each pair of responses, ``similarity`` and its baselines times 100.

    Runs of one method that differ in their seed are one line, ``run`` is then the method.
    """
    pairs = results.table("similarity")
    ok = pairs[pairs["status"] == "ok"].copy()
    if ok.empty:
        raise ResultsError(f"{results.path}: no pair of responses was measured, response_drift has nothing to draw.")
    seeds = ok.groupby("method")["seed"].nunique()
    runs = ok.groupby("method")["run"].nunique()
    pooled = ok["method"].map((runs > 1) & (runs == seeds))
    ok["run"] = ok["method"].where(pooled.astype(bool), ok["run"])
    if ok.groupby("run")["label"].nunique().max() == 1:  # single files: their names say which run, not where in it
        ok["label"] = "all prompts" if len(set(ok["label"])) > 1 else ok["label"]
    for name in ("similarity", *_LEVELS):
        ok[name] = 100 * ok[name]
    ok["encoder"] = results.read_json("similarity")["encoder"]["name"]
    return ok[[*_COLUMNS, *_LEVELS, "seed", "identical", "reference", "encoder"]].reset_index(drop=True)


def figure(table: pd.DataFrame) -> Figure:
    """Draw one panel for two runs, or one for each further run against the first."""
    runs = list(dict.fromkeys(table["run"]))
    labels = list(table.groupby("label")["order"].min().sort_values(kind="stable").index)
    panels = [runs[:2]] if len(runs) < 3 else [[runs[0], run] for run in runs[1:]]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    fig = new_figure(max(4.8, (1.1 + 0.85 * len(labels)) * columns), 2.4 * rows + 1.3)
    axes = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax, names in zip(axes, panels, strict=False):
        _panel(ax, table, names, [runs.index(name) for name in names], labels)
        ax.set_title(" | ".join(names) if len(panels) > 1 else "", fontsize=8)
    for ax in axes[len(panels) :]:
        ax.remove()
    low = _lower_end(table)
    for place, ax in enumerate(axes[: len(panels)]):
        ax.set_ylim(low, 100.5 + 0.06 * (100 - low))
        ax.set_ylabel("similarity × 100" if place % columns == 0 else "")
        last = place + columns >= len(panels)
        ax.tick_params(axis="x", labelbottom=last)
    _legend(fig, table, runs)
    footnote(fig, _caption(table, runs, low))
    return fig


def _panel(ax: Axes, table: pd.DataFrame, names: list[str], places: list[int], labels: list[str]) -> None:
    rows = table[table["run"].isin(names)]
    sns.violinplot(
        rows, x="label", y="similarity", hue="run", order=labels, hue_order=names, split=len(names) == 2, inner=None,
        cut=0, density_norm="width", width=0.86, linewidth=0.9, saturation=0.85, legend=False, ax=ax, gap=0,
        palette=[COLOURS[place % len(COLOURS)] for place in places], linecolor=GREY,
    )  # fmt: skip
    for collection in ax.collections:
        collection.set_alpha(0.55)
    for x, label in enumerate(labels):
        for side, name in enumerate(names):
            half = rows[(rows["label"] == label) & (rows["run"] == name)]
            if len(half):
                _marks(ax, half, x, -1 if side == 0 else 1, len(names) == 2)
    for level, (_, style) in _LEVELS.items():
        for x, label in enumerate(labels):
            known = rows.loc[rows["label"] == label, level].dropna()
            if len(known):
                ax.plot([x - 0.45, x + 0.45], [known.median()] * 2, style, color="black", linewidth=1.1, zorder=4)
    ax.set_xlabel("")
    ax.set_xlim(-0.55, len(labels) - 0.45)
    turned: dict[str, Any] = {"rotation": 20, "ha": "right", "rotation_mode": "anchor"} if len(labels) > 1 else {}
    ax.set_xticks(range(len(labels)), labels, **turned)
    ax.grid(axis="x", visible=False)


def _marks(ax: Axes, half: pd.DataFrame, x: int, side: int, split: bool) -> None:
    """Draw the quartiles on the half of a violin, and over it the share of responses that did not change."""
    reach = (0.03, 0.36) if split else (-0.36, 0.36)
    for level, style in ((0.25, (0, (2, 2))), (0.5, "-"), (0.75, (0, (2, 2)))):
        value = half["similarity"].quantile(level)
        ends = sorted(x + side * end for end in reach)
        width = 1.6 if level == 0.5 else 0.9
        ax.plot(ends, [value, value], linestyle=style, color="#333333", linewidth=width, zorder=3)
    share = 100 * half["identical"].astype(bool).mean()
    place = x + (0.21 * side if split else 0.0)
    ax.text(place, 100.6, f"{share:.0f} %", ha="center", va="bottom", fontsize=5.5, color=GREY)


def _lower_end(table: pd.DataFrame) -> float:
    """Return where the axis begins: all but the lowest 2 % of each half, and the baselines, are in view."""
    ends = [table.groupby(["run", "label"])["similarity"].quantile(0.02).min()]
    ends += [table.groupby("label")[name].median().min() for name in _LEVELS if table[name].notna().any()]
    return float(np.floor(min(ends) / 5) * 5)


def _legend(fig: Figure, table: pd.DataFrame, runs: list[str]) -> None:
    patches = [
        Patch(facecolor=COLOURS[i % len(COLOURS)], edgecolor=GREY, alpha=0.6, label=run) for i, run in enumerate(runs)
    ]
    lines = [
        fig.axes[0].plot([], [], style, color="black", linewidth=1.1, label=text)[0]
        for name, (text, style) in _LEVELS.items()
        if table[name].notna().any()
    ]
    handles = [*patches, *lines]
    lines_needed = -(-len(handles) // max(2, int(fig.get_figwidth() / 1.45)))
    fig.legend(handles=handles, loc="outside upper center", ncols=-(-len(handles) // lines_needed), fontsize=7.5)


def _caption(table: pd.DataFrame, runs: list[str], low: float) -> str:
    sizes = table.groupby(["run", "label"]).size()
    n = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    reference = ", ".join(dict.fromkeys(table["reference"])) if len(set(table["reference"])) < 3 else "the one before"
    below = int((table["similarity"] < low).sum())
    parts = [
        f"Cosine of the embeddings of two responses to one prompt, against {reference}; n = {n} pairs in each half"
        f"{_seeds(table)}.",
        f"Left: {runs[0]}, right: {runs[1] if len(runs) == 2 else 'the other run'}." if len(runs) > 1 else "",
        "Solid: median; dashed: quartiles; grey: share of responses that are the same text.",
        "Black: medians of the baselines over a violin's pairs." if table[list(_LEVELS)].notna().any(axis=None) else "",
        f"{below} of {len(table)} pairs lie below {low:.0f}, out of view." if below else "",
        f"Encoder: {table['encoder'].iloc[0]}.",
    ]
    return " ".join(part for part in parts if part)


def _seeds(table: pd.DataFrame) -> str:
    """Say how many seeds a run has, where that is known."""
    counts = table.groupby("run")["seed"].nunique()
    if counts.max() == 0:
        return ""
    low, high = counts.min(), counts.max()
    return f", {f'{low} to {high}' if low < high else low} seed{'s' if high > 1 else ''} a run"
