"""Whether a checkpoint collapsed, by stated rules against its own base, and what its log says about the JS.

Levels, in order: ``none``; ``elevated``, degenerate responses are more frequent than the base's; ``partial``, some task
collapsed; ``collapsed``, all tasks together did. A task (or all together) collapsed if **most** of its responses are
broken (:func:`driftlab.responses.artifacts.broken`: empty, repeating up to the length limit, or a loop of ten rounds):
the lower end of the rate's 95 % interval is above one half and above the upper end of the base's. Half, because then
the usual response of the checkpoint is no answer; against the base, because a base that loops has not been collapsed by
training. Answers that say their box three times, longer answers, or honest ones that hit the length limit make no
collapse: they are evidence beside it.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

ALL = "all"
LEVELS = ("none", "elevated", "partial", "collapsed")
MAJORITY = 0.5
AGREE = 0.1
"""The JS has closed if it is a tenth of what it was over the first steps that had a target: an order of magnitude."""
TARGETS = 0.5
"""A window without a target in most of its steps says nothing about agreement."""
SUSTAINED = 3
"""Steps in a row: one bad batch is no onset."""


def judge(row: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return the level of one task's responses, ``none``, ``elevated`` or ``collapsed``.

    Parameters
    ----------
    row, base : mapping
        Rows of the artifact table (``artifact_rate`` and ``broken_rate`` with their intervals) of the checkpoint and
        of its base.

    Examples
    --------
    >>> base = {"artifact_rate_high": 0.05, "broken_rate_high": 0.02}
    >>> judge({"artifact_rate_low": 0.6, "broken_rate_low": 0.1}, base)
    'elevated'
    >>> judge({"artifact_rate_low": 0.7, "broken_rate_low": 0.7}, base)
    'collapsed'
    """
    if row["broken_rate_low"] > max(MAJORITY, base["broken_rate_high"]):
        return "collapsed"
    return "elevated" if row["artifact_rate_low"] > base["artifact_rate_high"] else "none"


def conclude(rows: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
    """Add ``verdict`` and ``evidence`` to the rows of one checkpoint, the row of all tasks judged last.

    Parameters
    ----------
    rows, base : DataFrame
        One row a task and one called ``all``, of the checkpoint and of its base.
    """
    usual: dict[str, dict[str, Any]] = {str(row["task"]): row for row in _records(base)}
    found = rows.copy()
    found["verdict"] = [judge(row, usual[row["task"]]) if row["task"] in usual else "none" for row in _records(rows)]
    gone = sorted(found.loc[(found["task"] != ALL) & (found["verdict"] == "collapsed"), "task"])
    whole = found["task"] == ALL
    if gone and (found.loc[whole, "verdict"] != "collapsed").all():
        found.loc[whole, "verdict"] = "partial"
    found["evidence"] = [
        _evidence(row, usual.get(row["task"]), gone if row["task"] == ALL else []) for row in _records(found)
    ]
    return found


def _evidence(row: Mapping[str, Any], base: Mapping[str, Any] | None, gone: list[str]) -> str:
    if base is None:
        return "the base has no responses to this task"
    if row["verdict"] == "none":
        return ""
    parts = [
        f"{_percent(row['artifact_rate'])} degenerate "
        f"({_percent(row['artifact_rate_low'])} to {_percent(row['artifact_rate_high'])}; base "
        f"{_percent(base['artifact_rate'])})",
        f"{_percent(row['broken_rate'])} broken ({_percent(row['broken_rate_low'])} to "
        f"{_percent(row['broken_rate_high'])}; base {_percent(base['broken_rate'])})",
        f"{_percent(row['loop_rate'])} loop",
    ]
    for name in sorted(column.removesuffix("_count") for column in row if str(column).endswith("_count")):
        count, usual = row[f"{name}_count"], base[f"{name}_count"]
        if count >= usual + 1:  # one more in every response
            parts.append(f"{name} {count:.1f} times a response (base {usual:.1f})")
    if row["truncated_low"] > base["truncated_high"]:
        parts.append(f"{_percent(row['truncated'])} cut at the length limit (base {_percent(base['truncated'])})")
    if gone:
        parts.append("collapsed: " + ", ".join(gone))
    return "; ".join(parts)


def first_collapse(rows: pd.DataFrame) -> str:
    """Return the label of the first checkpoint of one run whose verdict is ``partial`` or ``collapsed``, else ''."""
    whole = rows[(rows["task"] == ALL) & rows["verdict"].isin(LEVELS[2:])].sort_values("global_step", kind="stable")
    return str(whole["label"].iloc[0]) if len(whole) else ""


def first_step(steps: pd.DataFrame) -> int | None:
    """Return the global step from which the rollouts of one run are mostly repetition, None if they never are.

    The first of three steps in a row whose ``repeat_rate``, the share of repeated 4-grams in the training responses, is
    above one half, where the run's first three steps are not.
    """
    if "repeat_rate" not in steps or "global_step" not in steps:
        return None
    rates = pd.to_numeric(steps["repeat_rate"], errors="coerce").reset_index(drop=True)
    bad = rates > MAJORITY
    if bad[:SUSTAINED].any():
        return None
    lasting = bad.astype(float)[::-1].rolling(SUSTAINED).min()[::-1].fillna(0.0) > 0
    return int(steps["global_step"].reset_index(drop=True)[lasting].iloc[0]) if lasting.any() else None


def js_reading(steps: pd.DataFrame, after: float, until: float) -> dict[str, Any]:
    """Say what the logged JS of the steps in (after, until] means: a small one can be agreement or no target at all.

    Returns
    -------
    dict
        ``js_distilled`` and ``js_response``, means over the window (NaN where nothing was logged);
        ``no_target_share``, the share of steps without a single distilled token; ``js_reading``:
        ``no teacher``, ``no target`` (most steps had none, so the JS says nothing), ``agreement`` (targets were there,
        and the JS is a tenth or less of its first level) or ``apart``.
    """
    nothing = {"js_distilled": math.nan, "js_response": math.nan, "no_target_share": math.nan, "js_reading": ""}
    if "global_step" not in steps or steps.empty:
        return nothing
    window = steps[(steps["global_step"] > after) & (steps["global_step"] <= until)]
    if window.empty:
        return nothing
    if "js_response" not in steps or steps["js_response"].isna().all():
        return nothing | {"js_reading": "no teacher"}
    if "js_distilled" not in steps:
        return nothing | {"js_response": float(window["js_response"].mean())}
    # Logs of other trainers write 0 where there was nothing to average.
    targets = pd.to_numeric(steps["js_distilled"], errors="coerce")
    if "empty_target" in steps:
        targets = targets.where(steps["empty_target"] == 0)
    inside = targets[window.index]
    share = float(inside.isna().mean())
    start = float(targets.dropna().iloc[: len(window)].mean()) if targets.notna().any() else math.nan
    level = float(inside.mean()) if inside.notna().any() else math.nan
    reading = "no target" if share > TARGETS else "agreement" if level <= AGREE * start else "apart"
    return {
        "js_distilled": level,
        "js_response": float(window["js_response"].mean()),
        "no_target_share": share,
        "js_reading": reading,
    }


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]


def _percent(rate: float) -> str:
    return f"{100 * rate:.0f} %"
