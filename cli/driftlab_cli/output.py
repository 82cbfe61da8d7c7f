"""What a command prints: the result on stdout, everything else on stderr."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd


class Output:
    """One command's voice.

    Parameters
    ----------
    as_json : bool
        Print the result as JSON instead of a table.
    quiet : bool
        Say nothing but the result and errors.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    def note(self, text: str) -> None:
        """Narrate on stderr."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def warn(self, text: str) -> None:
        """Say something the reader of the result must know; silent only with ``--quiet``."""
        self.note(f"warning: {text}")

    def result(self, table: "pd.DataFrame", *, title: str = "", extra: dict[str, Any] | None = None) -> None:
        """Print the result, as a table or as JSON records with ``extra`` beside them."""
        if self.as_json:
            print(json.dumps({"rows": _records(table), **(extra or {})}, indent=2, allow_nan=False))
            return
        if title:
            print(title)
        print(_align(table))

    def data(self, content: Any, text: str) -> None:
        """Print ``content`` as JSON, or ``text`` to a person."""
        print(json.dumps(content, indent=2) if self.as_json else text)

    @contextmanager
    def progress(self, total: float, label: str, *, in_bytes: bool = False) -> Iterator["Callable[[float, str], None]"]:
        """Give a function ``advance(amount, what)``; it draws a bar on a terminal and nothing elsewhere."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda amount, what: None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        count = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            count,
            TimeRemainingColumn(),
            TextColumn("{task.fields[what]}"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total, what="")
            yield lambda amount, what: bar.update(task, advance=amount, what=what[-60:])


def _records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows at full precision, with null for what JSON has no number for."""
    rows: list[dict[str, Any]] = [
        {str(key): None if _missing(value) or value in (math.inf, -math.inf) else value for key, value in row.items()}
        for row in table.to_dict(orient="records")
    ]
    return rows


def _missing(value: Any) -> bool:
    return value is None or value != value


def _align(table: "pd.DataFrame") -> str:
    """Return a plain, aligned text table: words to the left, numbers to the right."""
    if table.empty:
        return "(nothing)"
    cells = [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    header = [str(name) for name in table.columns]
    widths = [max(len(row[i]) for row in [header, *cells]) for i in range(len(header))]
    numeric = [
        table.iloc[:, i].map(lambda v: isinstance(v, (int, float)) or v is None).all() for i in range(len(header))
    ]

    def line(row: Sequence[str]) -> str:
        parts = [text.rjust(w) if right else text.ljust(w) for text, w, right in zip(row, widths, numeric, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join(line(row) for row in [header, *cells])


def _cell(value: Any) -> str:
    if _missing(value):
        return "-"
    if isinstance(value, float):
        return f"{value:.6f}" if 0.99 < abs(value) < 1 else f"{value:.4g}"  # an overlap of 0.99997 is not 1
    return str(value)
