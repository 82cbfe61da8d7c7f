"""Where in the model it moved: one measure at one checkpoint, layers against roles."""

import re

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.seeds import methods_of
from driftlab_analyses.style import footnote, new_figure

_TOWER = re.compile("visual|vision|audio|encoder|decoder")
_COLUMNS = 4
_ORDER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def table(results: ResultsDir, measure: str = "nss", label: str | None = None) -> pd.DataFrame:
    """Return ``measure`` by run, layer and role at one checkpoint of each run, its last by default.

    Experts of one layer are averaged, and so are the seeds of a study's methods.

    Raises
    ------
    ResultsError
        If the measure was not taken or no checkpoint has that label.
    """
    spectral = results.table("spectral")
    if measure not in spectral:
        raise ResultsError(f"{results.path}: measure {measure!r} is not in the table spectral.")
    rows = spectral[(spectral["status"] == "ok") & spectral["layer"].notna() & spectral[measure].notna()]
    if label is None:
        rows = rows[rows["order"] == rows.groupby("run")["order"].transform("max")]
    else:
        rows = rows[rows["label"] == label]
    if rows.empty:
        raise ResultsError(f"{results.path}: no layer has {measure!r} at checkpoint {label or 'last'}.")
    methods = methods_of(results)
    if methods:
        rows = rows.assign(run=rows["run"].map(methods))
    keys = ["run", "label", "layer", "role"]
    means = rows.groupby(keys, sort=False)[measure].agg(["mean", "size"]).reset_index()
    return means.rename(columns={"mean": "value", "size": "n"}).assign(
        measure=measure, layer=means["layer"].astype(int)
    )


def figure(table: pd.DataFrame) -> Figure:
    """Draw one heat map a run on a common colour scale, logarithmic where the values span a decade."""
    runs = list(dict.fromkeys(table["run"]))
    roles = sorted(set(table["role"]), key=_role_key)
    layers = sorted(set(table["layer"]))
    columns = min(len(runs), _COLUMNS)
    lines = -(-len(runs) // columns)
    height = 1.6 + min(6.0, 0.16 * len(layers) + 0.6)
    fig = new_figure(1.6 + (0.42 * len(roles) + 0.5) * columns, height * lines)
    grid_of_axes = fig.subplots(lines, columns, sharey=True, squeeze=False)
    axes = grid_of_axes.ravel()
    for ax in axes[len(runs) :]:
        ax.set_axis_off()
    norm = _norm(table["value"].to_numpy())
    for ax, run in zip(axes, runs, strict=False):
        rows = table[table["run"] == run]
        grid = rows.pivot_table(index="layer", columns="role", values="value").reindex(index=layers, columns=roles)
        ax.set_facecolor("#dddddd")
        mesh = ax.pcolormesh(
            np.arange(len(roles) + 1), np.arange(len(layers) + 1), grid.to_numpy(), norm=norm, cmap="Reds"
        )
        label = str(rows["label"].iloc[0])
        ax.set_title(run if run == label else f"{run}\n{label}", fontsize=8)
        ax.set_xticks(np.arange(len(roles)) + 0.5, [_short(role) for role in roles], rotation=45, ha="right")
        ax.grid(False)
    step = max(1, len(layers) // 15)
    for ax in grid_of_axes[:, 0]:
        ax.set_yticks(np.arange(0, len(layers), step) + 0.5, [str(layer) for layer in layers[::step]])
        ax.set_ylabel("layer")
    fig.colorbar(mesh, ax=list(axes), label=str(table["measure"].iloc[0]), shrink=0.8)
    footnote(fig, "One cell: one matrix" + ("." if table["n"].max() == 1 else ", mean over experts or seeds."))
    return fig


def _norm(values: np.ndarray) -> Normalize:
    positive = values[values > 0]
    if len(positive) and (values >= 0).all() and positive.max() > 10 * positive.min():
        return LogNorm(positive.min(), positive.max())
    return Normalize(values.min(), values.max())


def _short(role: str) -> str:
    """Return the last word of a role, behind the tower's name where the role has one."""
    first, last = role.split(".", 1)[0], role.rsplit(".", 1)[-1].removesuffix("_proj")
    return f"{first} {last}" if _TOWER.match(first) and first != last else last


def _role_key(role: str) -> tuple[int, str]:
    last = role.rsplit(".", 1)[-1]
    return (_ORDER.index(last) if last in _ORDER else len(_ORDER), role)
