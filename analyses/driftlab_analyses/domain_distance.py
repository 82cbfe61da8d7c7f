"""Distances between domains: a heat map of 100 x MMD² with the cells at the noise floor marked."""

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from driftlab.results import ResultsDir
from driftlab_analyses.style import footnote, new_figure

Grid = NDArray[np.float64]


def table(results: ResultsDir) -> pd.DataFrame:
    """Return the pairs with value, interval and noise floor in units of 100 x MMD²."""
    pairs = results.table("mmd")
    scaled = {f"{name}_x100": 100 * pairs[name] for name in ("mmd2_u", "ci_low", "ci_high", "null_q95")}
    kept = pairs[["left", "right", "n_left", "n_right", "p_holm", "at_noise_floor", "gamma", "encoder"]]
    return kept.assign(**scaled)


def figure(table: pd.DataFrame) -> Figure:
    """Draw the matrix; a hatched cell cannot be told from 0 by its own permutation test."""
    names = names_of(table)
    sizes = dict(zip(table["left"], table["n_left"], strict=True)) | dict(
        zip(table["right"], table["n_right"], strict=True)
    )
    fig = draw_heat_map(names, square(table, "mmd2_u_x100"), "100 × squared MMD")
    ax = fig.axes[0]
    place = {name: i for i, name in enumerate(names)}
    floor = table[table["at_noise_floor"].astype(bool)]
    for i, j in zip(floor["left"].map(place), floor["right"].map(place), strict=True):
        for x, y in ((i, j), (j, i)):
            ax.add_patch(Rectangle((x, y), 1, 1, fill=False, hatch="////", edgecolor="#c8c8c8", linewidth=0))
    half = float(((table["ci_high_x100"] - table["ci_low_x100"]) / 2).median())
    lines = [
        "n: " + ", ".join(f"{name} {sizes[name]}" for name in names),
        f"Unbiased estimate, Gaussian kernel, one γ = {table['gamma'].iloc[0]:.4g}. "
        f"95 % jackknife intervals: ±{half:.1f} (median). "
        f"Hatched: at the noise floor, {len(floor)} of {len(table)} pairs.",
        f"Encoder: {table['encoder'].iloc[0]}",
    ]
    footnote(fig, "\n".join(lines))
    return fig


def names_of(table: pd.DataFrame) -> list[str]:
    """Return the domains of a table of pairs, in the order they were given."""
    return list(dict.fromkeys([*table["left"], *table["right"]]))


def square(table: pd.DataFrame, column: str) -> Grid:
    """Return one column of a table of pairs as a symmetric matrix with a zero diagonal."""
    place = {name: i for i, name in enumerate(names_of(table))}
    grid = np.zeros((len(place), len(place)))
    rows, columns = table["left"].map(place).to_numpy(), table["right"].map(place).to_numpy()
    grid[rows, columns] = grid[columns, rows] = table[column].to_numpy()
    return grid


def draw_heat_map(names: list[str], grid: Grid, label: str) -> Figure:
    """Draw a symmetric matrix with its numbers; colours start at 0, where two domains are alike."""
    n = len(names)
    longest = max(len(name) for name in names)
    fig = new_figure(2.0 + 0.07 * longest + 0.55 * n, 1.4 + 0.035 * longest + 0.36 * n)
    ax = fig.subplots()
    norm = Normalize(0.0, max(float(grid.max()), 1e-9))
    mesh = ax.pcolormesh(np.arange(n + 1), np.arange(n + 1), grid, norm=norm, cmap="Reds")
    for i in range(n):
        for j in range(n):
            dark = norm(grid[i, j]) > 0.5
            text = "–" if i == j else f"{round(float(grid[i, j]), 2) + 0.0:.2f}".replace("-", "−")
            ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=7, color="white" if dark else "#222222")
    ax.invert_yaxis()
    ax.set_xticks(np.arange(n) + 0.5, names, rotation=35, ha="right", rotation_mode="anchor")
    ax.set_yticks(np.arange(n) + 0.5, names)
    ax.tick_params(axis="y", length=0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    fig.colorbar(mesh, ax=ax, label=label, pad=0.02)
    return fig
