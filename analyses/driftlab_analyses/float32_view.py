"""What float32 sees: the spectral shift read by a plain float32 loop beside driftlab's, and how far each is off.

The table ``float32`` is made by ``benchmarks/float32.py``, which holds the loop that stands for common scripts.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.style import GREY, footnote, look, new_figure

_KEYS = ["run", "label", "order"]


def table(results: ResultsDir) -> pd.DataFrame:
    """Return medians over matrices by checkpoint: both readings, their difference, the shown error and the floors.

    Raises
    ------
    ResultsError
        If the two tables have no matrix in common.
    """
    spectral = results.table("spectral")
    spectral = spectral[(spectral["status"] == "ok") & (spectral["order"] > 0) & (spectral["method"] != "identical")]
    plain = results.table("float32").rename(columns={"nss": "nss_float32", "max_angle_left_deg": "angle_float32"})
    both = spectral.merge(plain, on=[*_KEYS, "matrix"])
    if both.empty:
        raise ResultsError(f"{results.path}: tables spectral and float32 have no matrix in common.")
    both["float32_off"] = (both["nss_float32"] / both["nss"] - 1).abs()
    both["shown_error"] = both["nss_error"] / both["nss"]
    groups = both.groupby(_KEYS, sort=False)
    columns = ["nss", "nss_float32", "nss_floor", "float32_off", "shown_error"]
    columns += ["max_angle_left_deg", "angle_float32", "max_angle_left_deg_floor"]
    medians = groups[columns].median()
    worst = groups[["float32_off", "shown_error"]].max().add_suffix("_worst")
    return medians.join(worst).join(groups.size().rename("n")).reset_index()


def figure(table: pd.DataFrame) -> Figure:
    """Draw the readings on the left and how far they are off on the right, both on logarithmic scales."""
    fig = new_figure(7.4, 3.4)
    left, right = fig.subplots(1, 2)
    for i, run in enumerate(dict.fromkeys(table["run"])):
        rows = table[table["run"] == run].sort_values("order")
        _readings(left, rows, run, look(i))
        _errors(right, rows, run, look(i))
    for ax in (left, right):
        labels = table.groupby("order")["label"].first()
        ax.set_xticks(list(labels.index), list(labels), rotation=25, ha="right", rotation_mode="anchor")
        ax.set_yscale("log")
    left.set_ylabel("NSS, median")
    right.set_ylabel("relative error of NSS")
    for ax in (left, right):
        ax.legend(fontsize=6.5, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    counts = sorted(set(table["n"]))
    n = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    footnote(fig, f"Medians over {n} matrices; band up to the worst. float32: SVD of base and checkpoint in float32.")
    return fig


def _readings(ax: Axes, rows: pd.DataFrame, run: str, style: dict[str, Any]) -> None:
    ax.plot(rows["order"], rows["nss"], **style, markersize=5, label=f"{run}, driftlab")
    ax.plot(rows["order"], rows["nss_float32"], "--", color=style["color"], label=f"{run}, float32")
    first = "_" if len(ax.lines) > 3 else ""
    ax.plot(rows["order"], rows["nss_floor"], ":", color=GREY, label=f"{first}float32, nothing moved")


def _errors(ax: Axes, rows: pd.DataFrame, run: str, style: dict[str, Any]) -> None:
    x, colour = rows["order"], style["color"]
    for name, line, text in (("float32_off", "--", "float32, true"), ("shown_error", "-", "driftlab, as printed")):
        low = np.maximum(rows[name], 1e-16)
        ax.plot(x, low, line, color=colour, marker=style["marker"] if line == "-" else "", label=f"{run}: {text}")
        ax.fill_between(x, low, rows[f"{name}_worst"], color=colour, alpha=0.12, linewidth=0)
