"""One look for all figures, and files that are the same bytes for the same numbers."""

import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf", "#7f7f7f")
MARKERS = ("o", "X", "P", "^", "s", "D", "v", "*")
GREY = "#666666"
_LETTERS_AN_INCH = 19  # of a footnote
SUFFIXES = (".pdf", ".png", ".csv")

RC: Any = {
    "font.family": "DejaVu Serif",
    "mathtext.fontset": "dejavuserif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linestyle": "--",
    "grid.alpha": 0.6,
    "grid.linewidth": 0.6,
    "legend.frameon": True,
    "pdf.fonttype": 42,
    "svg.hashsalt": "driftlab",
    "savefig.dpi": 200,
}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure with the house style's canvas; call inside :func:`styled`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def styled() -> Any:
    """Context in which figures are made and saved."""
    return rc_context(RC)


def look(index: int) -> dict[str, Any]:
    """Return colour and marker of the ``index``-th line."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def footnote(figure: Figure, text: str) -> None:
    """Say under the figure what lines and bands mean and how many items stand behind them; broken to its width."""
    letters = int(_LETTERS_AN_INCH * figure.get_figwidth())
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, letters) or [""]]
    figure.supxlabel("\n".join(lines), fontsize=6.5, color=GREY, x=0.02, ha="left")


def save(figure: Figure, table: pd.DataFrame, stem: Path) -> list[Path]:
    """Write ``stem``.pdf, .png and .csv without dates, so that equal numbers give equal bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(suffix) for suffix in SUFFIXES]
    with styled():
        figure.savefig(files[0], metadata={"CreationDate": None, "Creator": "driftlab", "Producer": None})
        figure.savefig(files[1], metadata={"Software": "driftlab"})
    table.to_csv(files[2], index=False, lineterminator="\n")
    return files
