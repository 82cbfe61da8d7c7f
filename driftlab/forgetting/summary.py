"""Metrics of runs, of methods over their seeds, and of one method against another, in one table."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from driftlab.forgetting.continual import METRICS, Item, items
from driftlab.forgetting.history import History
from driftlab.forgetting.intervals import Estimate, combine, mean_of, over_seeds
from driftlab.multiplicity import holm
from driftlab.separation import LEVEL

COLUMNS = (
    "level",
    "run",
    "method",
    "other",
    "seed",
    "after",
    "stage_index",
    "metric",
    "task",
    "value",
    "low",
    "high",
    "unit",
    "interval",
    "n_seeds",
    "n_tasks",
    "tasks",
    "p_value",
    "p_holm",
    "verdict",
    "reason",
)
"""Columns of the table ``forgetting_summary``."""
SEPARATED, NOT_SEPARATED, ONE_SEED, UNKNOWN = "separated", "not separated", "one seed", "no interval"

_OF_THE_BASE = ("base", "ood_base")


def summarise(histories: Sequence[History]) -> tuple[pd.DataFrame, list[str]]:
    """Return the metrics at three levels, and remarks.

    ``run``: every metric after every stage, for each task and as the mean over tasks; intervals over the evaluation
    questions. ``method``: the mean over the seeds of a method with a t interval over them; only over tasks that every
    seed has. ``difference``: method against other method after the last stage both reached, over the tasks both
    have: paired by seed where two or more seeds are shared, else over the evaluation questions, which says nothing
    about other seeds (``verdict`` is then ``one seed``). p-values of one metric are adjusted by Holm for the pairs.

    Parameters
    ----------
    histories : sequence of History

    Returns
    -------
    (DataFrame with the columns COLUMNS, list of str)
    """
    rows = [row for history in histories for row in _run_rows(history)]
    groups, remarks = _methods(histories)
    for method, members in groups.items():
        rows += _method_rows(method, members)
    rows += _adjusted([row for pair in combinations(groups.items(), 2) for row in _differences(*pair)])
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"stage_index": "int64", "n_seeds": "int64", "n_tasks": "int64"}), remarks


def _methods(histories: Sequence[History]) -> tuple[dict[str, list[History]], list[str]]:
    """Group runs that differ by their seed alone; others of the same method stand for themselves."""
    by_method: dict[str, list[History]] = {}
    for history in histories:
        by_method.setdefault(history.method, []).append(history)
    groups: dict[str, list[History]] = {}
    remarks = []
    for method, members in by_method.items():
        seeds = {history.seed for history in members}
        plans = {tuple(history.plan) for history in members}
        if len(members) == 1 or (len(seeds) == len(members) and len(plans) == 1):
            groups[method] = members
            continue
        why = "their stages differ" if len(plans) > 1 else "their seeds are not told apart"
        remarks.append(f"{method}: its {len(members)} runs are not taken as seeds of one method, {why}.")
        groups |= {history.run: [history] for history in members}
    return groups, remarks


def _run_rows(history: History) -> Iterator[dict[str, Any]]:
    for t, label in enumerate(history.ends, 1):
        for metric in METRICS:
            found = items(history, metric, t)
            head = _head(history, t, label, metric) | {"level": "run", "run": history.run, "seed": history.seed}
            head |= {"n_seeds": 1}
            if metric != "acc":
                for item in found:
                    yield head | {"task": item.task} | _numbers(item.estimate() if item.terms else None, [item])
            yield head | {"task": ""} | _mean(found, METRICS[metric].first > t)


def _head(history: History, t: int, label: str, metric: str) -> dict[str, Any]:
    return {
        "method": history.method,
        "after": label,
        "stage_index": t,
        "metric": metric,
        "unit": METRICS[metric].unit,
        "other": "",
        "verdict": "",
    }


def _mean(found: Sequence[Item], early: bool = False) -> dict[str, Any]:
    known = [item for item in found if item.terms]
    if not found:
        return _numbers(None, []) | {"reason": "defined from the second stage on" if early else "no task of its kind"}
    return _numbers(mean_of([item.estimate() for item in known]) if known else None, found)


def _numbers(estimate: Estimate | None, found: Sequence[Item]) -> dict[str, Any]:
    known = [item.task for item in found if item.terms]
    left = [item.reason for item in found if not item.terms]
    if len(found) > 1 and left and known:
        left = [f"left out: {'; '.join(left)}"]
    numbers = (estimate.value, estimate.low, estimate.high) if estimate else (math.nan,) * 3
    return dict(zip(("value", "low", "high"), numbers, strict=True)) | {
        "interval": estimate.source if estimate else "none",
        "n_tasks": len(known),
        "tasks": ", ".join(known),
        "reason": "; ".join(left),
    }


def _method_rows(method: str, members: Sequence[History]) -> Iterator[dict[str, Any]]:
    for t in range(1, max(len(history.ends) for history in members) + 1):
        here = [history for history in members if len(history.ends) >= t]
        for metric in METRICS:
            found = [{item.task: item for item in items(history, metric, t)} for history in here]
            known = [task for task in found[0] if all(one[task].terms for one in found if task in one)]
            head = _head(here[0], t, here[0].ends[t - 1], metric)
            head |= {"level": "method", "run": "", "method": method, "seed": None, "n_seeds": len(here)}
            scopes = [(task, [task]) for task in known if metric != "acc"] + [("", known)]
            for task, names in scopes:
                values = [mean_of([one[name].estimate() for name in names]).value for one in found if names]
                yield head | {"task": task} | _over(values, names, _why(metric, t, found[0], names, len(here)))


def _why(metric: str, t: int, found: dict[str, Item], names: Sequence[str], seeds: int) -> str:
    if METRICS[metric].first > t:
        return "defined from the second stage on"
    if not found:
        return "no task of its kind"
    said = []
    if len(names) not in (1, len(found)):
        said.append("left out: " + ", ".join(task for task in found if task not in names))
    if seeds == 1:
        said.append("one seed: no interval over seeds")
    return "; ".join(said)


def _over(values: Sequence[float], names: Sequence[str], reason: str) -> dict[str, Any]:
    mean, low, high, _ = over_seeds(values) if values else (math.nan,) * 4
    return {
        "value": mean,
        "low": low,
        "high": high,
        "interval": "seeds" if len(values) > 1 else "none",
        "n_tasks": len(names) if values else 0,
        "tasks": ", ".join(names),
        "reason": reason,
    }


def _differences(one: tuple[str, list[History]], other: tuple[str, list[History]]) -> Iterator[dict[str, Any]]:
    """Compare two methods that were trained on the same stages."""
    (name, left), (against, right) = one, other
    if [stage for stage, _ in left[0].plan] != [stage for stage, _ in right[0].plan]:
        return
    seeds = sorted({h.seed for h in left if h.seed is not None} & {h.seed for h in right if h.seed is not None})
    pairs = [(next(h for h in left if h.seed == seed), next(h for h in right if h.seed == seed)) for seed in seeds] or [
        (left[0], right[0])
    ]
    t = min(len(history.ends) for pair in pairs for history in pair)
    for metric in [name for name in METRICS if t and name not in _OF_THE_BASE]:
        found = [tuple({i.task: i for i in items(history, metric, t)} for history in pair) for pair in pairs]
        common = [
            task for task in found[0][0] if all(task in side and side[task].terms for pair in found for side in pair)
        ]
        if not common:
            continue
        head = _head(left[0], t, left[0].ends[t - 1], metric)
        head |= {"level": "difference", "run": "", "method": name, "other": against, "task": "", "seed": None}
        estimates = [mean_of([_minus(pair[0][task], pair[1][task]) for task in common]) for pair in found]
        if METRICS[metric].unit == "%":
            head["unit"] = "points"
        yield head | _judged(estimates, common, found[0][0])


def _minus(one: Item, other: Item) -> Estimate:
    """Return the difference of what a task contributes to two methods, paired over its questions where it can be."""
    terms = [*one.terms, *((-weight, cell) for weight, cell in other.terms)]
    values = [item.estimate().value for item in (one, other)]
    return combine(terms, values[0] - values[1])


def _judged(estimates: Sequence[Estimate], common: Sequence[str], every: dict[str, Item]) -> dict[str, Any]:
    left = [task for task in every if task not in common]
    row: dict[str, Any] = {
        "n_seeds": len(estimates),
        "n_tasks": len(common),
        "tasks": ", ".join(common),
        "reason": f"left out: {', '.join(left)}" if left else "",
    }
    if len(estimates) > 1:
        mean, low, high, p = over_seeds([one.value for one in estimates])
        return row | {"value": mean, "low": low, "high": high, "p_value": p, "interval": "seeds"}
    only = estimates[0]
    return row | {"value": only.value, "low": only.low, "high": only.high, "interval": only.source}


def _adjusted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add Holm's p-values over the pairs of each metric, and what they say."""
    for metric in METRICS:
        family = [row for row in rows if row["metric"] == metric]
        for row, p in zip(family, holm([row.get("p_value", math.nan) for row in family]), strict=True):
            row["p_holm"] = p
            if row["n_seeds"] == 1:
                row["verdict"] = ONE_SEED if not math.isnan(row["low"]) else UNKNOWN
            else:
                row["verdict"] = SEPARATED if p < LEVEL else NOT_SEPARATED
    return rows
