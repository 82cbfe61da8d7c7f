"""The heat map that a run was compared with (``driftlab mmd --compare``), in the form of ours."""

import pandas as pd
from matplotlib.figure import Figure

from driftlab.results import ResultsDir
from driftlab_analyses.domain_distance import draw_heat_map, names_of, square
from driftlab_analyses.style import footnote


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
    """Draw the reference; the footnote says how the pairs that both know are ranked."""
    unit = table["unit"].iloc[0] or "value"
    fig = draw_heat_map(names_of(table), square(table, "value"), unit if len(unit) < 30 else "reference")
    both = table[table["ours_x100"].notna()]
    lines = [f"Reference: {table['source'].iloc[0]}. Unit: {unit}."]
    if len(both) > 1:
        tau = both["value"].corr(both["ours_x100"].astype(float), method="kendall")
        lines.append(f"Kendall's tau with this run: {tau:.2f} over {len(both)} pairs of the same names.")
    footnote(fig, "\n".join(lines))
    return fig
