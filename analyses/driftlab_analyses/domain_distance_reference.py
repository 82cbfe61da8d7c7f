"""The heat map that a run was compared with (``driftlab mmd --compare``), in the form of ours."""

import pandas as pd
from matplotlib.figure import Figure

from driftlab.results import ResultsDir
from driftlab_analyses.domain_distance import draw_heat_map, names_of, square, wrap
from driftlab_analyses.style import footnote, new_figure


def table(results: ResultsDir) -> pd.DataFrame:
    """Return the reference's pairs, with our value beside each that has the same two names (without case)."""
    reference, ours = results.table("mmd_reference"), results.table("mmd")
    own = {
        frozenset((left.casefold(), right.casefold())): 100 * value
        for left, right, value in zip(ours["left"], ours["right"], ours["mmd2_u"], strict=True)
    }
    keys = [
        frozenset((left.casefold(), right.casefold()))
        for left, right in zip(reference["left"], reference["right"], strict=True)
    ]
    return reference.assign(ours_x100=pd.array([own.get(key) for key in keys], dtype="Float64"))


def figure(table: pd.DataFrame) -> Figure:
    """Draw the reference, and our values against it where both know the pair."""
    both = table[table["ours_x100"].notna()]
    unit = table["unit"].iloc[0] or "value"
    fig = draw_heat_map(names_of(table), square(table, "value"), "reference")
    source = wrap(f"Unit: {unit}. Source: {table['source'].iloc[0]}", 19 * fig.get_figwidth())
    if len(both) < 2:
        footnote(fig, source)
        return fig
    fig = new_figure(4.2, 3.6)
    ax = fig.subplots()
    ax.scatter(both["value"], both["ours_x100"].astype(float), s=22, color="#d62728", edgecolor="white", linewidth=0.5)
    ax.set_xlabel("reference")
    ax.set_ylabel("this run, 100 × squared MMD")
    footnote(fig, source)
    return fig
