"""Where the domains lie: t-SNE of their texts beside MDS of their distances; colour = group, marker = data set."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.style import GREY, footnote, new_figure

# Markers that stay apart at six points, more of them than the house style's eight.
_MARKERS = ("o", "X", "s", "P", "D", "^", "v", "*", "p", "<", ">", "h", "d", "8")
_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22", "#e377c2",
)  # fmt: skip


def table(results: ResultsDir) -> pd.DataFrame:
    """Return the stored coordinates of both maps with the settings that made them.

    Raises
    ------
    ResultsError
        If the table is empty.
    """
    points = results.table("projection")
    if points.empty:
        raise ResultsError(f"{results.path}: the table projection is empty: there is nothing to place.")
    maps = results.read_json("mmd")["maps"]
    return points.assign(
        perplexity=maps["tsne"].get("perplexity"),
        cap=maps["tsne"]["cap"],
        seed=maps["tsne"]["seed"],
        stress=maps["mds"]["stress"],
    )


def figure(table: pd.DataFrame) -> Figure:
    """Draw the texts on the left and, in units of MMD, the domains on the right; one legend for both."""
    groups = list(dict.fromkeys(table["group"]))
    domains = table.drop_duplicates("domain")[["domain", "group"]]
    colour = {group: _COLOURS[i % len(_COLOURS)] for i, group in enumerate(groups)}
    marker = {name: _MARKERS[i % len(_MARKERS)] for i, name in enumerate(domains["domain"])}
    texts, places = table[table["method"] == "tsne"], table[table["method"] == "mds"]
    panels = [(name, rows) for name, rows in (("tsne", texts), ("mds", places)) if len(rows)]
    fig = new_figure(3.3 * len(panels) + 1.7, 3.6)
    axes = fig.subplots(1, len(panels), squeeze=False)[0]
    for ax, (name, rows) in zip(axes, panels, strict=True):
        _scatter(ax, rows, colour, marker, size=14 if name == "tsne" else 70)
        if name == "mds":
            _name_points(ax, rows)
        ax.set_title("Texts (t-SNE)" if name == "tsne" else r"Domains (MDS of $\sqrt{\mathrm{MMD}^2}$)", fontsize=9)
    fig.legend(handles=_legend(domains, colour, marker), loc="outside right upper", fontsize=7.5)
    footnote(fig, _caption(table, len(texts)))
    return fig


def _scatter(ax: Axes, rows: pd.DataFrame, colour: dict[str, str], marker: dict[str, str], size: int) -> None:
    for (name, group), some in rows.groupby(["domain", "group"], sort=False):
        ax.scatter(
            some["x"],
            some["y"],
            s=size,
            c=colour[str(group)],
            marker=marker[str(name)],
            alpha=0.55 if size < 50 else 1.0,
            edgecolor="white",
            linewidth=0.25,
        )
    ax.set_aspect("equal", adjustable="datalim")
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(True)
    ax.tick_params(labelsize=7)


def _name_points(ax: Axes, rows: pd.DataFrame) -> None:
    low, high = rows["x"].min(), rows["x"].max()
    for name, x, y in zip(rows["domain"], rows["x"], rows["y"], strict=True):
        # names at the sides are written inward, so that long ones stay in the frame
        place = (x - low) / (high - low) if high > low else 0.5
        side = "left" if place < 0.2 else "right" if place > 0.8 else "center"
        ax.annotate(name, (x, y), xytext=(0, 7), textcoords="offset points", ha=side, fontsize=7, color=GREY)
    ax.margins(0.2)


def _legend(domains: pd.DataFrame, colour: dict[str, str], marker: dict[str, str]) -> list[Line2D]:
    """Return one entry a data set, in its group's colour, under the name of the group where it has several."""
    handles = []
    for group, some in domains.groupby("group", sort=False):
        names = list(some["domain"])
        if names != [group]:
            handles.append(Line2D([], [], linestyle="", label=f"{group}:"))
        handles += [
            Line2D([], [], linestyle="", color=colour[str(group)], marker=marker[name], markersize=6, label=name)
            for name in names
        ]
    return handles


def _caption(table: pd.DataFrame, texts: int) -> str:
    lines = []
    if texts:
        lines.append(
            f"t-SNE of {texts} texts, at most {table['cap'].iloc[0]} a domain, perplexity "
            f"{table['perplexity'].iloc[0]:.3g}, PCA start, seed {table['seed'].iloc[0]}; "
            "gaps and areas carry no scale."
        )
    lines.append(f"MDS in units of MMD; stress-1 {table['stress'].iloc[0]:.2g}: the share of the distances it misses.")
    return "\n".join(lines)
