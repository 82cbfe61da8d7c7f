"""Shares or percents: what scale scores were written in, and that two scales are never mixed by a guess."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from driftlab.errors import DataError, UsageError

FRACTION, PERCENT, RAW = "fraction", "percent", "raw"
_TOLD = (FRACTION, PERCENT, RAW)
_HINT = "Say which: --scale fraction, --scale percent, or for one task or file --scale NAME=percent."


@dataclass(frozen=True)
class Scale:
    """What the user says of the scales of the scores.

    Attributes
    ----------
    every : str
        ``auto``, or one scale for all tables: ``fraction`` (0 to 1), ``percent`` (0 to 100).
    named : dict of str to str
        Scale by task, or by file name or path; ``raw`` for a number that is neither, such as a length.
    """

    every: str = "auto"
    named: dict[str, str] = field(default_factory=dict)


def parse_scale(options: Sequence[str]) -> Scale:
    """Read ``--scale`` options: ``auto``, ``fraction``, ``percent``, or ``NAME=`` one of them or ``raw``.

    Raises
    ------
    UsageError
        If one is none of these.

    Examples
    --------
    >>> parse_scale(["percent", "bleu=fraction"])
    Scale(every='percent', named={'bleu': 'fraction'})
    """
    every, named = "auto", {}
    for option in options:
        name, _, value = option.rpartition("=")
        if value not in (_TOLD if name else ("auto", FRACTION, PERCENT)):
            raise UsageError(f"--scale {option!r}: expected auto, fraction, percent, or NAME=fraction|percent|raw.")
        if name:
            named[name] = value
        else:
            every = value
    return Scale(every, named)


def to_percent(table: pd.DataFrame, scale: Scale) -> pd.DataFrame:
    """Bring all scores with a best value to percents; tasks where less is better, and raw ones, stay as they are.

    The scale of a run's own log is known. The scale of a table is fraction if no score exceeds 1, percent if no score
    but 0 lies at or below 1; anything else could be either (a collapsed model has 0.4 percent) and is refused, and so
    are two tables of different scales, until the user says what they are.

    Raises
    ------
    DataError
        If the scale cannot be told, or scores lie outside it.
    """
    table = table.copy()
    known = table["scale_read"].to_numpy() != ""
    raw = (table["better"] == "lower").to_numpy() & ~known
    read = table["scale_read"].to_numpy(dtype=object, copy=True)
    read[raw] = RAW
    guess = pd.Series(~known & ~raw, index=table.index)
    if scale.every != "auto":
        read[guess] = scale.every
        guess[:] = False
    for name, value in scale.named.items():
        chosen = (table["task"] == name) | (table["source"] == name) | (table["source"].map(_name) == name)
        if not chosen.any():
            raise UsageError(f"--scale {name}={value}: expected a task or a file of the scores, found neither.")
        read[chosen] = value
        guess[chosen] = False
    if guess.any():
        read[guess] = _guessed(table[guess])
    table["scale_read"] = read
    factor = table["scale_read"].map({FRACTION: 100.0, PERCENT: 1.0, RAW: 1.0})
    table["score"], table["stderr"] = table["score"] * factor, table["stderr"] * factor
    table["scale"] = table["scale_read"].where(table["scale_read"] == RAW, PERCENT)
    _within(table)
    _one_scale_a_task(table)
    return table


def _guessed(rows: pd.DataFrame) -> "pd.Series[str]":
    found = {}
    for source, part in rows.groupby("source", sort=False):
        values = part["score"].dropna()
        if values.max() <= 1:
            found[source] = FRACTION
            continue
        small = part.loc[part["score"].between(0, 1, inclusive="right"), ["task", "score"]]
        if len(small):
            first = small.iloc[0]
            raise DataError(
                f"{source}: expected scores of one scale, found {first['score']:g} ({first['task']}) beside "
                f"{values.max():g}: shares mixed with percents, or percents near 0?",
                _HINT,
            )
        found[source] = PERCENT
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{_name(str(source))} {value}" for source, value in found.items())
        raise DataError(f"Scores: expected tables of one scale, found {shown}.", _HINT)
    return rows["source"].map(found)


def _within(table: pd.DataFrame) -> None:
    bounded = table[table["scale"] == PERCENT]
    outside = bounded[(bounded["score"] < 0) | (bounded["score"] > 100 + 1e-9)]
    if len(outside):
        row = outside.iloc[0]
        raise DataError(
            f"{row['source']}: task {row['task']}: expected a {row['scale_read']}, found "
            f"{row['score'] / (100 if row['scale_read'] == FRACTION else 1):g} ({row['run']}, {row['label']}).",
            f"Say what it is: --scale {row['task']}=percent or --scale {row['task']}=raw.",
        )


def _one_scale_a_task(table: pd.DataFrame) -> None:
    for task, part in table.groupby("task"):
        if len(set(part["scale"])) > 1:
            raise DataError(
                f"Task {task!r}: expected one scale, found percents and raw numbers.",
                f"Give --scale {task}=raw, or leave one of them out.",
            )


def _name(source: str) -> str:
    return Path(source).name
