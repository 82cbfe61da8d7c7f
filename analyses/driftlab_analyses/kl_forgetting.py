"""Forgetting against KL to the base, and against weight drift beside it.

Shenfeld, Pari and Agrawal, "RL's Razor", 2025 (arXiv 2509.04259), report that the KL measured on the new task predicts
forgetting (quadratic fits, R² .93 to .96) and that norms of the weight change do so far less (.34 to .58).
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses.sequence_axis import Look, looks
from driftlab_analyses.style import GREY, footnote, new_figure

KL = ("kl_base_to_new", "kl_new_to_base")
_ALL = "all"
WEIGHTS = ("rel_frobenius", "rel_spectral", "nss")
_NAMES = {
    "kl_base_to_new": "KL(base ‖ new), new task",
    "kl_new_to_base": "KL(new ‖ base), new task",
    "kl_new_to_base_all": "KL(new ‖ base), all tasks",
    "rel_frobenius": "‖ΔW‖F / ‖W‖F",
    "rel_spectral": "‖ΔW‖₂ / ‖W‖₂",
    "nss": "NSS",
}
_LEAST = 6
"""Twice the coefficients: a quadratic through three points fits anything, through four nearly anything."""


def table(results: ResultsDir) -> pd.DataFrame:
    """Return one row a checkpoint and predictor: its value, and the mean forgetting of the tasks learnt elsewhere.

    The KL is that on the task of the checkpoint's stage, as in the publication, and that over all tasks beside it.
    Forgetting is the mean over the tasks other than the stage's own. Fits are to the checkpoints that all predictors
    have (``common``), else their R² could not be compared.
    """
    policy, scores = results.table("policy"), results.table("forgetting")
    others = scores[(scores["task"] != scores["stage"]) & scores["forgetting"].notna() & (scores["label"] != "base")]
    lost = (
        others.groupby(["run", "label"], sort=False)
        .agg(forgetting=("forgetting", "mean"), points=("points", "mean"), tasks=("task", "nunique"))
        .reset_index()
    )
    here = policy[(policy["task"] == policy["stage"]) & (policy["status"] == "ok")]
    keys = ["run", "method", "seed", "label", "stage", "order", "global_step"]
    parts = [here[[*keys, "n"]].assign(predictor=name, value=here[name], se=here[f"{name}_se"]) for name in KL]
    whole = policy[(policy["task"] == _ALL) & policy["label"].isin(here["label"]) & (policy["status"] == "ok")]
    parts.append(
        whole[[*keys, "n"]].assign(
            predictor="kl_new_to_base_all", value=whole["kl_new_to_base"], se=whole["kl_new_to_base_se"]
        )
    )
    if results.has("spectral_summary"):
        summary = results.table("spectral_summary")
        summary = summary[(summary["group_by"] == "model") & summary["measure"].isin(WEIGHTS)]
        norms = here[[*keys, "n"]].merge(summary[["run", "label", "measure", "mean"]], on=["run", "label"])
        parts.append(norms.rename(columns={"measure": "predictor", "mean": "value"}))
    found = pd.concat(parts, ignore_index=True).merge(lost, on=["run", "label"])
    found = found[np.isfinite(found["value"].astype(float))].reset_index(drop=True)
    if found.empty:
        raise ResultsError(f"{results.path}: no checkpoint has both a KL on its stage's task and scores of others.")
    count = found.groupby(["run", "label"])["predictor"].transform("nunique")
    found["common"] = count == found["predictor"].nunique()
    shared = found[found["common"]]
    fits = {name: fit(rows["value"], rows["forgetting"]) for name, rows in shared.groupby("predictor", sort=False)}
    for column in ("constant", "linear", "quadratic", "r2"):
        found[column] = found["predictor"].map({name: one[column] for name, one in fits.items()}).astype(float)
    return found


def fit(x: Any, y: Any) -> dict[str, float]:
    """Fit y = a + bx + cx² by least squares; NaN below six points or where x or y does not vary."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    names = ("constant", "linear", "quadratic", "r2")
    spread = float(((y - y.mean()) ** 2).sum()) if len(y) else 0.0
    if len(x) < _LEAST or len(np.unique(x)) < _LEAST // 2 or spread == 0:
        return dict.fromkeys(names, float("nan"))
    scale = float(np.abs(x).max())
    c, b, a = np.polyfit(x / scale, y, 2)
    residual = float(((y - np.polyval([c, b, a], x / scale)) ** 2).sum())
    return dict(zip(names, (a, b / scale, c / scale**2, 1 - residual / spread), strict=True))


def figure(table: pd.DataFrame) -> Figure:
    """Draw one panel a predictor with its fit and R²; colour is the method, the last checkpoints are large."""
    predictors = [name for name in _NAMES if name in set(table["predictor"])]
    columns = min(3, len(predictors))
    lines = -(-len(predictors) // columns)
    fig = new_figure(2.6 * columns + 0.6, 2.4 * lines + 1.1)
    axes = fig.subplots(lines, columns, squeeze=False, sharey=True)
    runs = table.drop_duplicates("run")
    styles = looks(list(runs["run"]), list(runs["method"]))
    for ax, name in zip(axes.flat, predictors, strict=False):
        _panel(ax, table[table["predictor"] == name], styles)
        ax.set_xlabel(_NAMES[name])
    for ax in list(axes.flat)[len(predictors) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("Forgetting (%)")
    handles = {
        str(method): axes.flat[0].plot([], [], linestyle="", **styles[run])[0]
        for run, method in zip(runs["run"], runs["method"], strict=True)
    }
    fig.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=min(4, len(handles)))
    tasks = sorted(set(table["tasks"]))
    over = f"{tasks[0]}" if len(tasks) == 1 else f"{tasks[0]} to {tasks[-1]}"
    footnote(
        fig,
        f"A point: one checkpoint; {len(runs)} runs. Forgetting: mean over {over} tasks other than the one being "
        "trained, against the base, 0 for a gain. Bars: standard errors.\nCurve: a + bx + cx² by least squares over "
        "the n checkpoints that every panel has (others hollow), six at least; R² in that sample, where noise alone "
        "gives 2/(n − 1) on average. Points of one run are not independent.",
    )
    return fig


def _panel(ax: Axes, rows: pd.DataFrame, styles: dict[str, Look]) -> None:
    for run, style in styles.items():
        mine = rows[rows["run"] == run]
        if "se" in mine and mine["se"].notna().any():
            ax.errorbar(
                mine["value"], mine["forgetting"], xerr=mine["se"], fmt="none", ecolor=style["color"],
                elinewidth=0.6, alpha=0.4,
            )  # fmt: skip
        for common, face in ((True, style["color"]), (False, "none")):
            part = mine[mine["common"] == common]
            ax.plot(part["value"], part["forgetting"], linestyle="", markersize=5, markerfacecolor=face, **style)
    first, n = rows.iloc[0], int(rows["common"].sum())
    if np.isfinite(first["r2"]):
        fitted = rows.loc[rows["common"], "value"]
        x = np.linspace(fitted.min(), fitted.max(), 200)
        ax.plot(x, first["constant"] + first["linear"] * x + first["quadratic"] * x**2, color=GREY, linewidth=1.2)
        text = f"R² = {first['r2']:.2f}, n = {n}"
    else:
        text = f"too few for a curve, n = {n}" if n < _LEAST else f"no fit, n = {n}"
    ax.set_title(text, fontsize=7.5, color=GREY)
