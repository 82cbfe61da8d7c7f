"""One record of a response file, in each form that is known, to the cells of the normal form.

Sources of the forms: lm-evaluation-harness ``--log_samples`` (``samples_TASK_DATE.jsonl``; ``doc_id``, ``arguments``,
``resps``, ``filtered_resps``, ``filter``, ``metrics``), verl ``trainer.rollout_data_dir`` and
``trainer.validation_data_dir`` (``STEP.jsonl``; ``input``, ``output``, ``gts``, ``score``, ``step``).
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from driftlab.domains.columns import text_of
from driftlab.errors import DataError

IDS = ("id", "prompt_id", "question_id", "custom_id", "doc_id", "idx")
RESPONSES = ("response", "completion", "generation", "generated_text", "model_output", "prediction", "output")
_PROMPTS = ("prompt", "question", "problem", "instruction", "input", "messages")
_REWARDS = ("reward", "score", "correct", "acc")
_SAMPLES = re.compile(r"samples_(?P<task>.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?\.jsonl?(\.gz)?$")

Cells = dict[str, Any]
Form = Callable[[Mapping[str, Any]], Cells]


def choose_form(columns: tuple[str, ...], path: Path, column: str = "") -> tuple[str, Form]:
    """Return the name of a file's form and what reads one of its records.

    Parameters
    ----------
    columns : tuple of str
        Those of the file.
    path : Path
        The file; lm-evaluation-harness keeps the task in its name.
    column : str, optional
        The column of the responses; guessed by default.

    Raises
    ------
    DataError
        If no column can hold the responses.
    """
    have = set(columns)
    if not column and "doc_id" in have and "resps" in have:
        return "lm-eval", _lm_eval(path)
    if not column and {"input", "output"} <= have and have & {"score", "step", "gts"}:
        return "verl", _plain("output", columns, prompt="input")
    known = [name for name in ([column] if column else RESPONSES) if name in have]
    if not known:
        wanted = f"column {column!r}" if column else f"a column of responses ({', '.join(RESPONSES)})"
        raise DataError(
            f"Responses {path}: expected {wanted}, found {', '.join(columns) or 'no named columns'}.",
            "Name it: NAME=PATH::COLUMN.",
        )
    return "records", _plain(known[0], columns)


def _plain(response: str, columns: tuple[str, ...], prompt: str = "") -> Form:
    by = {
        "id": next((name for name in IDS if name in columns), ""),
        "prompt": prompt or next((name for name in _PROMPTS if name in columns and name != response), ""),
        "reward": next((name for name in _REWARDS if name in columns), ""),
    }

    def cells(row: Mapping[str, Any]) -> Cells:
        return {
            "id": label(row.get(by["id"])),
            "task": label(row.get("task")),
            "prompt": prompt_of(row.get(by["prompt"])),
            "response": response_of(row.get(response)),
            "reward": number(row.get(by["reward"])),
            "truncated": flag(row.get("truncated")),
            "tokens": count(row.get("tokens")),
        }

    return cells


def _lm_eval(path: Path) -> Form:
    found = _SAMPLES.match(path.name)
    task = found["task"] if found else path.stem

    def cells(row: Mapping[str, Any]) -> Cells:
        metrics = row.get("metrics") or []
        return {
            "id": label(row.get("doc_id")),
            "task": task,
            "prompt": prompt_of(_argument(row.get("arguments"))),
            "response": response_of(row.get("resps")),  # as generated; filtered_resps is what a filter made of it
            "reward": next((value for name in metrics if (value := number(row.get(name))) is not None), None),
            "truncated": None,
            "tokens": None,
        }

    return cells


def _argument(arguments: Any) -> Any:
    """Return the prompt of a request: ``{"gen_args_0": {"arg_0": …}}``, or ``[[prompt, settings]]`` in older files."""
    while isinstance(arguments, dict | list) and arguments:
        arguments = next(iter(arguments.values())) if isinstance(arguments, dict) else arguments[0]
        if isinstance(arguments, dict) and arguments.keys() >= {"role", "content"}:
            return [arguments]
    return arguments


def response_of(cell: Any) -> str | None:
    """Return the one response of a cell; None where there is no text, or more than one.

    Examples
    --------
    >>> response_of([["7"]]), response_of(["7", "8"]), response_of([[-1.5, False]]), response_of(None)
    ('7', None, None, '')
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, dict) or (isinstance(cell, list) and cell and isinstance(cell[0], dict)):
        return text_of(cell, ("assistant",))
    if isinstance(cell, list):
        return "" if not cell else response_of(cell[0]) if len(cell) == 1 and isinstance(cell[0], str | list) else None
    return None


def prompt_of(cell: Any) -> str:
    """Return what was asked as one text; a chat with all its turns, so that two prompts are equal only if all is."""
    if isinstance(cell, list | dict):
        return json.dumps(cell, ensure_ascii=False, sort_keys=True, default=str)
    return label(cell)


def label(cell: Any) -> str:
    """Return an id, task or prompt as text; a whole number read as a float loses its point.

    Examples
    --------
    >>> label(7.0), label(7), label("7"), label(None)
    ('7', '7', '7', '')
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def number(cell: Any) -> float | None:
    """Return a finite number, None for anything else."""
    return float(cell) if isinstance(cell, bool | int | float) and math.isfinite(cell) else None


def flag(cell: Any) -> bool | None:
    """Return a truth value, None for anything else."""
    return bool(cell) if isinstance(cell, bool | int) else None


def count(cell: Any) -> int | None:
    """Return a number of tokens, given as such or as the tokens themselves."""
    if isinstance(cell, list):
        return len(cell)
    found = number(cell)
    return None if found is None else int(found)
