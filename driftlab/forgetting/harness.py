"""Results files of the LM Evaluation Harness (``results_*.json``), one a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from driftlab.errors import DataError
from driftlab.forgetting.scores import normal

_NO_METRICS = ("alias", "name", "sample_len", "samples", "sample_count")


def is_harness(content: Any) -> bool:
    """Tell whether a JSON object has the form of a results file of the harness."""
    results = content.get("results") if isinstance(content, dict) else None
    return isinstance(results, dict) and bool(results) and all(isinstance(one, dict) for one in results.values())


def read_harness(path: Path, run: str, label: str) -> tuple[pd.DataFrame, list[str]]:
    """Read one results file of the harness as the scores of one checkpoint.

    Keys of a task are ``METRIC,FILTER`` with ``METRIC_stderr,FILTER`` beside it (before version 0.4 without the
    filter), ``N/A`` where there is no error. A group with a score of its own stands for its subtasks, which are left
    out: counting both would count them twice.

    Parameters
    ----------
    path : Path
    run, label : str
        What the file does not say: whose scores these are.

    Returns
    -------
    (DataFrame, list of str)
        Rows in the one form, and remarks.

    Raises
    ------
    DataError
        If it is no such file.

    References
    ----------
    EleutherAI, lm-evaluation-harness, ``docs/interface.md`` and ``lm_eval/evaluator.py``.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected JSON, found none that can be read ({type(error).__name__}).") from None
    if not is_harness(content):
        raise DataError(
            f"{path}: expected a results file of lm-evaluation-harness with an object 'results', found another JSON.",
            "Give scores of other tools as CSV or Parquet.",
        )
    rows = [row for task, found in content["results"].items() for row in _task_rows(content, str(task), found)]
    inside = _subtasks(content, {row["task"] for row in rows})
    remarks = []
    if inside:
        remarks.append(f"{path.name}: {len(inside)} subtasks were left out, their groups stand for them.")
    kept = [row | {"run": run, "label": label, "source": str(path)} for row in rows if row["task"] not in inside]
    if not kept:
        raise DataError(f"{path}: expected a score under 'results', found none.")
    return normal(pd.DataFrame(kept)), remarks


def _task_rows(content: dict[str, Any], task: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for key, value in found.items():
        metric, comma, rule = key.partition(",")
        if metric.endswith("_stderr") or key in _NO_METRICS or not _is_number(value):
            continue
        stderr = found.get(f"{metric}_stderr{comma}{rule}")
        better = _entry(content, "higher_is_better", task, metric)
        rows.append(
            {
                "task": task,
                "metric": metric if rule in ("", "none") else key,
                "score": float(value),
                "stderr": stderr if _is_number(stderr) else None,
                "n": _entry(content, "n-samples", task, "effective"),
                "better": "lower" if better is False else "higher",
                "shots": _entry(content, "n-shot", task),
                "eval_seed": _entry(content, "config", "random_seed"),
                "temperature": _temperature(content, task),
            }
        )
    return rows


def _subtasks(content: dict[str, Any], scored: set[str]) -> set[str]:
    """Return the tasks below a group that has a score of its own."""
    below = content.get("group_subtasks") or {}
    found: set[str] = set()
    waiting = [child for group, children in below.items() if group in scored for child in children]
    while waiting:
        task = waiting.pop()
        if task not in found:
            found.add(task)
            waiting += below.get(task) or []
    return found


def _entry(content: dict[str, Any], *path: str) -> Any:
    value: Any = content
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _temperature(content: dict[str, Any], task: str) -> Any:
    value = _entry(content, "configs", task, "generation_kwargs", "temperature")
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
