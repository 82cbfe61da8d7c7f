"""Gain, forgetting and change against the distance between what was trained and what is tested."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from driftlab.errors import DataError, UsageError
from driftlab.forgetting.changes import change
from driftlab.forgetting.history import IN_DOMAIN, History
from driftlab.forgetting.quadratic import DRAWS, Parabola, fit_parabola

OUTCOMES = ("gain", "forgetting", "change")
COLUMNS = (
    "what",
    "outcome",
    "run",
    "method",
    "seed",
    "stage",
    "domain",
    "task",
    "kind",
    "before",
    "after",
    "x",
    "y",
    "low",
    "high",
)
"""Columns of the table ``curve``: rows of points (``what`` is ``point``) and of fitted bands (``fit``)."""


def read_distances(pairs: pd.DataFrame, names: Mapping[str, str]) -> "Distances":
    """Take squared distances from a table of pairs.

    Parameters
    ----------
    pairs : DataFrame
        Columns ``left``, ``right`` and ``mmd2_u`` (or ``mmd2``): the table ``mmd``, or one of the same form.
    names : mapping of str to str
        What the pairs call a stage's training data or a task, where it is not the same name.

    Raises
    ------
    DataError
        If a column is missing or a value is no number.
    UsageError
        If ``names`` gives a name that the pairs do not have.
    """
    column = next((name for name in ("mmd2_u", "mmd2") if name in pairs), "")
    if not column or not {"left", "right"} <= set(pairs):
        raise DataError(
            f"Distances: expected columns left, right and mmd2_u, found {', '.join(map(str, pairs.columns))}.",
            "Give the results folder of driftlab mmd, or a table of that form.",
        )
    values = pd.to_numeric(pairs[column], errors="coerce")
    if not np.isfinite(values).all():
        raise DataError(f"Distances: expected numbers in {column}, found '{pairs[column][values.isna()].iloc[0]}'.")
    found = {
        frozenset((str(left), str(right))): float(value)
        for left, right, value in zip(pairs["left"], pairs["right"], values, strict=True)
    }
    domains = list(dict.fromkeys([*map(str, pairs["left"]), *map(str, pairs["right"])]))
    for name, domain in names.items():
        if domain not in domains:
            raise UsageError(f"--domain {name}={domain}: expected a domain, one of {', '.join(domains)}.")
    return Distances(found, domains, names)


class Distances:
    """Squared distances between domains, found by the names of stages and tasks.

    Parameters
    ----------
    pairs : mapping of frozenset of two names to float
    domains : list of str
    names : mapping of str to str
        Domain of a stage or task where it has another name.
    """

    def __init__(self, pairs: Mapping[frozenset[str], float], domains: list[str], names: Mapping[str, str]) -> None:
        self.pairs, self.domains, self.names = pairs, domains, names

    def domain(self, name: str) -> str:
        """Return the domain of a stage or task, empty if there is none."""
        if name in self.names:
            return self.names[name]
        return next((domain for domain in self.domains if domain.lower() == name.lower()), "")

    def between(self, stage: str, task: str) -> float | str:
        """Return the squared distance of a stage's training data from a task's questions, or why there is none.

        It is 0 where both are one domain: then training and test questions were not measured apart.
        """
        left, right = self.domain(stage), self.domain(task)
        missing = [name for name, domain in ((stage, left), (task, right)) if not domain]
        if missing:
            return f"no domain of the distances is called {' or '.join(missing)}"
        if left == right:
            return 0.0
        return self.pairs.get(frozenset((left, right)), f"no distance between {left} and {right}")


def measure_curve(
    histories: Sequence[History], distances: Distances, *, draws: int = DRAWS, seed: int = 0
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Relate the change on every task during every stage to the task's distance from the stage's training data.

    A change is taken from the end of the stage before (the base for the first), so that in a sequence each point
    belongs to one training domain. ``gain`` and ``forgetting`` are censored at 0, ``change`` is not: where the two
    disagree, the censored fit follows how many points lie at 0.

    Returns
    -------
    (DataFrame with the columns COLUMNS, dict)
        Points and bands; the fits with their intervals, and what was left out.
    """
    points: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for history in histories:
        for row in _points(history, distances):
            (points if "y" in row else left_out).append(row)
    rows = [{"what": "point", "outcome": name} | row | {"y": row["y"][name]} for row in points for name in OUTCOMES]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    fits = []
    bands = []
    for key, part in table.groupby(["method", "outcome"], sort=False):
        method, outcome = map(str, key)
        fit = fit_parabola(
            part["x"].to_numpy(dtype=float), part["y"].to_numpy(dtype=float), list(part["task"]), draws=draws, seed=seed
        )
        others = part[part["kind"] != IN_DOMAIN]
        away = fit_parabola(
            others["x"].to_numpy(dtype=float),
            others["y"].to_numpy(dtype=float),
            list(others["task"]),
            draws=draws,
            seed=seed,
        )
        fits.append(_described(method, outcome, fit, part) | {"without_in_domain": _bend(away, len(others))})
        if isinstance(fit, Parabola):
            grid = {"x": fit.x, "y": fit.y, "low": fit.low, "high": fit.high}
            bands.append(pd.DataFrame(grid).assign(what="fit", method=method, outcome=outcome))
    whole = pd.concat([table, *(band.reindex(columns=list(COLUMNS)) for band in bands)], ignore_index=True)
    reasons = pd.Series([row["reason"] for row in left_out], dtype=object).value_counts(sort=False)
    return whole.astype({"seed": float, "low": float, "high": float}), {
        "model": "y = a + b x + c x^2, least squares; x squared MMD, y in per cent of the score before the stage",
        "bootstrap": {"clusters": "evaluation tasks", "draws": draws, "seed": seed, "interval": "95 % percentile"},
        "before": "the end of the stage before, the base for the first",
        "fits": fits,
        "left_out": [{"reason": str(reason), "points": int(count)} for reason, count in reasons.items()],
    }


def _points(history: History, distances: Distances) -> Iterator[dict[str, Any]]:
    before = history.base
    for (stage, _), after in zip(history.plan, history.ends, strict=False):
        for task in history.tasks:
            row = {
                "run": history.run,
                "method": history.method,
                "seed": history.seed,
                "stage": stage,
                "domain": distances.domain(stage),
                "task": task,
                "kind": history.kind(after, task),
                "before": before,
                "after": after,
            }
            distance = distances.between(stage, task)
            was, is_now = history.cells.get((before, task)), history.cells.get((after, task))
            if isinstance(distance, str):
                yield row | {"reason": distance}
            elif was is None or is_now is None:
                yield row | {"reason": history.absent(before if was is None else after, task)}
            else:
                found = change(was, is_now, lower=task in history.lower)
                if math.isnan(found["change"]):
                    yield row | {"reason": f"{task} at {before}: {found['reason']}"}
                else:
                    yield row | {"x": distance, "y": found, "low": math.nan, "high": math.nan}
        before = after


def _described(method: str, outcome: str, fit: Parabola | str, part: pd.DataFrame) -> dict[str, Any]:
    """Return one fit as plain JSON values; what is infinite or unknown becomes null with its reason."""
    head: dict[str, Any] = {"method": method, "outcome": outcome, "points": len(part), "tasks": part["task"].nunique()}
    head |= {"seeds": part["seed"].nunique(), "at_zero": int((part["y"] == 0).sum())}
    if isinstance(fit, str):
        return head | {"status": "no fit", "reason": fit}
    low, high = float(part["x"].min()), float(part["x"].max())
    inside = low <= fit.vertex <= high
    said = []
    if not fit.vertex_bounded:
        said.append("the interval of c holds 0: the vertex is unbounded, the curve may bend either way")
    if not inside:
        said.append("the vertex of the fit lies outside the measured distances")
    others = [float(str(one["c"])) for one in fit.left_out]
    known = [value for value in others if not math.isnan(value)]
    return head | {
        "status": "ok",
        "a": fit.a,
        "b": fit.b,
        "c": fit.c,
        "c_interval": [_json(fit.c_low), _json(fit.c_high)],
        "vertex": _json(fit.vertex),
        "vertex_interval": [_json(fit.vertex_low), _json(fit.vertex_high)],
        "vertex_bounded": fit.vertex_bounded,
        "vertex_is": fit.extreme,
        "vertex_inside": inside,
        "x_range": [low, high],
        "r2": _json(fit.r2),
        "draws": fit.draws,
        "degenerate_draws": fit.degenerate,
        "leave_one_task_out": {
            "c_range": [min(known), max(known)] if known else None,
            "c_keeps_its_sign": bool(known) and all(value * fit.c > 0 for value in known),
            "fits": [{name: _json(value) for name, value in one.items()} for one in fit.left_out],
        },
        "reason": "; ".join(said),
    }


def _bend(fit: Parabola | str, points: int) -> dict[str, Any]:
    """Return c without the tasks just trained: their gain at short distance alone can bend a curve."""
    if isinstance(fit, str):
        return {"points": points, "c": None, "c_interval": None, "reason": fit}
    return {"points": points, "c": fit.c, "c_interval": [_json(fit.c_low), _json(fit.c_high)], "reason": ""}


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
