"""Score tables as CSV, TSV or Parquet: one score a row (long), or one column a task (wide)."""

from pathlib import Path

import pandas as pd

from driftlab.errors import DataError
from driftlab.forgetting.scores import COLUMNS, normal

SUFFIXES = (".csv", ".tsv", ".parquet", ".csv.gz", ".tsv.gz")
_ALIASES = {
    "model": "method",
    "algorithm": "method",
    "checkpoint": "label",
    "train_on": "stage",
    "trainon": "stage",
    "benchmark": "task",
    "dataset": "task",
    "value": "score",
    "accuracy": "score",
    "std_err": "stderr",
    "se": "stderr",
    "num_samples": "n",
    "n_samples": "n",
}
_UNMEASURED = ("", "-", "–", "—", "nan", "na", "n/a", "none", "null")
_SUFFIXED = ("stderr", "n")
_BESIDE = ("global_step", "unknown")
_ENTERED = {*COLUMNS, *_BESIDE} - {"score", "stderr", "n", "task", "scale", "scale_read", "source", "status", "reason"}
"""Columns that say which run or checkpoint a row belongs to; in a wide table every other column is a task."""


def is_table(path: Path) -> bool:
    """Tell by its name whether a file is a score table."""
    return path.name.lower().endswith(SUFFIXES)


def read_table(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read a score table, long or wide.

    A table with columns ``task`` and ``score`` is long. Any other is wide: columns named like those of the one form
    say whose row it is, ``TASK_stderr`` and ``TASK_n`` belong to ``TASK``, every other column with numbers is a task.

    Returns
    -------
    (DataFrame, list of str)
        Rows in the one form, and remarks. A cell without a number is a row with ``status`` ``missing``.

    Raises
    ------
    DataError
        If it cannot be read, has no run, no checkpoint, or no score.
    """
    frame = read_frame(path).rename(columns=lambda name: _column(str(name)))
    if frame.empty:
        raise DataError(f"{path}: expected scores, found no rows.")
    twice = sorted({str(name) for name in frame.columns[frame.columns.duplicated()]})
    if twice:
        raise DataError(f"{path}: expected each column once, found {', '.join(twice)} more than once.")
    remarks: list[str] = []
    if not {"task", "score"} <= set(frame):
        frame = _melt(path, frame, remarks)
    frame = _who(path, frame)
    numbers = pd.to_numeric(frame["score"].map(_cleaned), errors="coerce")
    reason = frame["score"].map(lambda cell: _why(str(cell)))
    frame = frame.assign(score=numbers, source=str(path), status="ok", reason="")
    frame.loc[numbers.isna(), "status"] = "missing"
    frame.loc[numbers.isna(), "reason"] = reason[numbers.isna()]
    return normal(frame).assign(global_step=_numbers(frame, "global_step")), remarks


def read_frame(path: Path) -> pd.DataFrame:
    """Read a CSV or TSV file, every cell as text, or a Parquet file.

    Raises
    ------
    DataError
        If it is none of these.
    """
    try:
        if path.name.lower().endswith(".parquet"):
            return pd.read_parquet(path)
        separator = "\t" if ".tsv" in path.name.lower() else ","
        # Every cell as text first: "NA" may be a task's name, and a number that is none must be told apart.
        return pd.read_csv(path, sep=separator, dtype=str, encoding="utf-8-sig", keep_default_na=False)
    except (OSError, ValueError, pd.errors.ParserError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: expected a table, found none that can be read: {why.rstrip('.')}.") from None


def _column(name: str) -> str:
    """Return the name a column has in the one form; names of tasks stay as they are."""
    plain = name.strip().lower().replace(" ", "_")
    plain = _ALIASES.get(plain, plain)
    return plain if plain in _ENTERED | {"task", "score", "stderr", "n"} else name.strip()


def _melt(path: Path, frame: pd.DataFrame, remarks: list[str]) -> pd.DataFrame:
    """Turn a wide table into a long one."""
    names = [str(name) for name in frame]
    keys = [name for name in names if name in _ENTERED]
    whole = [name for name in _SUFFIXED if name in names]
    rest = [name for name in names if name not in _ENTERED and name not in whole]
    beside = {f"{task}_{kind}" for task in rest for kind in _SUFFIXED} & set(rest)
    tasks = [name for name in rest if name not in beside and _has_number(frame[name])]
    left = [name for name in rest if name not in beside and name not in tasks]
    if not tasks:
        raise DataError(
            f"{path}: expected columns task and score, or one column of numbers a task, found "
            f"{', '.join(rest) or 'none'}."
        )
    if left:
        remarks.append(f"{path.name}: columns without numbers were left out: {', '.join(left)}.")
    parts = []
    for task in tasks:
        part = frame[keys].assign(task=task, score=frame[task])
        for kind in _SUFFIXED:
            own = f"{task}_{kind}"
            part[kind] = frame[own] if own in beside else frame[kind] if kind in whole else None
        parts.append(part)
    remarks.append(f"{path.name}: read as one column a task: {', '.join(tasks)}.")
    return pd.concat(parts, ignore_index=True)


def _has_number(column: "pd.Series[str]") -> bool:
    return bool(pd.to_numeric(column.map(_cleaned), errors="coerce").notna().any())


def _who(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """Fill in whose rows these are, each from what the table has."""
    found = {name for name in ("run", "method") if name in frame}
    if not found:
        raise DataError(f"{path}: expected a column run or method, found {', '.join(map(str, frame.columns))}.")
    if not {"label", "stage"} & set(frame):
        raise DataError(
            f"{path}: expected a column label (such as base, math@50) or stage, found "
            f"{', '.join(map(str, frame.columns))}."
        )
    for name in ("run", "method", "label", "stage", "seed", "step"):
        if name not in frame:
            frame[name] = ""
        frame[name] = frame[name].astype(object).where(frame[name].notna(), "").astype(str).str.strip()
    stage, _, step = (frame["label"].str.rpartition("@")[place] for place in range(3))
    parsed = (stage != "") & pd.to_numeric(step, errors="coerce").notna()
    frame["step"] = frame["step"].where(frame["step"] != "", step.where(parsed, ""))
    frame["stage"] = frame["stage"].where(frame["stage"] != "", stage.where(parsed, ""))
    named = frame["stage"] + frame["step"].map(lambda cell: f"@{cell}" if cell else "")
    frame["label"] = frame["label"].where(frame["label"] != "", named)
    frame["stage"] = frame["stage"].where(frame["label"].str.lower() != "base", "")
    seeded = frame["method"] + frame["seed"].map(lambda cell: f" seed {cell}" if cell else "")
    frame["run"] = frame["run"].where(frame["run"] != "", seeded)
    frame["method"] = frame["method"].where(frame["method"] != "", frame["run"])
    return frame


def _numbers(frame: pd.DataFrame, name: str) -> "pd.Series[float]":
    values = frame[name] if name in frame else pd.Series(None, index=frame.index, dtype=float)
    return pd.to_numeric(values, errors="coerce").astype(float).reset_index(drop=True)


def _cleaned(cell: object) -> object:
    """Return a cell without the mark of percents; the numbers say themselves which scale they have."""
    return cell.strip().removesuffix("%").strip() if isinstance(cell, str) else cell


def _why(cell: str) -> str:
    empty = cell.strip().lower() in _UNMEASURED
    return "not evaluated: the table has no score" if empty else f"expected a number, found {cell.strip()!r}"
