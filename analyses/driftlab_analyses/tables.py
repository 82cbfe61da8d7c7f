"""Tables of scores: the base and each method, task by task, with the means Current, Last and OOD.

The form of Tables 1 to 3 of arXiv 2607.01763. Drawn as a figure and written as Markdown and as LaTeX (booktabs)
beside it. A best value is set bold only where its method is separated from every other one: over seeds, adjusted.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from driftlab.errors import ResultsError
from driftlab.files import write_text
from driftlab.results import ResultsDir
from driftlab_analyses.style import footnote, new_figure

MEANS = {"current": "Current", "last": "Last", "ood": "OOD"}
BASE = "Base"
_COLUMNS = ["method", "column", "kind", "value", "low", "high", "n_seeds", "n_tasks", "interval", "best"]


def table(results: ResultsDir) -> pd.DataFrame:
    """Return one row for each method and column of the table, after the last stage.

    Values of several seeds are means with a t interval, those of one seed have the 95 % interval over the questions
    (``interval``). ``best`` is true where the method's mean is the highest and separated from all others.
    """
    summary = results.table("forgetting_summary")
    runs, methods = summary[summary["level"] == "run"], summary[summary["level"] == "method"]
    if runs.empty:
        raise ResultsError(f"{results.path}: no run reached the end of a stage, tables has nothing to show.")
    rows: list[dict[str, object]] = []
    bases: list[dict[str, object]] = []
    for method, own in methods.groupby("method", sort=False):
        at = own["stage_index"].max()
        last = own[own["stage_index"] == at]
        if (last["n_seeds"] == 1).all():
            mine = runs["method"].eq(method) if method in set(runs["method"]) else runs["run"].eq(method)
            last = runs[mine & (runs["stage_index"] == at)]
        base = _rows(BASE, last, {"base": "", "ood_base": ""}, {"base": "Last", "ood_base": "OOD"})
        if _values(base) not in bases:
            name = BASE if not bases else f"{BASE} of {method}"
            rows += [cell | {"method": name} for cell in base]
            bases.append(_values(base))
        rows += _rows(str(method), last, {"last": "", "ood": ""}, MEANS)
    found = pd.DataFrame(rows, columns=_COLUMNS)
    return found.assign(best=_best(found, summary[summary["level"] == "difference"]))


def _rows(name: str, own: pd.DataFrame, tasks: dict[str, str], means: dict[str, str]) -> list[dict[str, object]]:
    """Return the cells of one line: the tasks first, then the means."""
    found: list[dict[str, object]] = []
    for row in own.to_dict("records"):
        cell = {"method": name, **{key: row[key] for key in ("value", "low", "high", "n_seeds", "interval", "n_tasks")}}
        if row["task"] and row["metric"] in tasks:
            kind = "ood" if row["metric"].startswith("ood") else "trained"
            found.append(cell | {"column": row["task"], "kind": kind})
        elif not row["task"] and row["metric"] in means:
            found.append(cell | {"column": means[row["metric"]], "kind": "mean"})
    order = {"trained": 0, "ood": 1, "mean": 2}
    return sorted(found, key=lambda cell: order[str(cell["kind"])])


def _values(cells: list[dict[str, object]]) -> dict[str, object]:
    return {str(cell["column"]): cell["value"] for cell in cells}


def _is_base(methods: "pd.Series[str]") -> "pd.Series[bool]":
    return (methods == BASE) | methods.str.startswith(f"{BASE} of ")


def _best(found: pd.DataFrame, differences: pd.DataFrame) -> "pd.Series[bool]":
    """Tell which mean is the highest and separated from every other method."""
    metric = {label: name for name, label in MEANS.items()}
    best = pd.Series(False, index=found.index)
    means = found[(found["kind"] == "mean") & ~_is_base(found["method"]) & found["value"].notna()]
    for column, rows in means.groupby("column"):
        place = int(rows["value"].argmax())
        name = rows["method"].iloc[place]
        pairs = differences[(differences["metric"] == metric[str(column)]) & (differences["task"] == "")]
        own = pairs[(pairs["method"] == name) | (pairs["other"] == name)]
        separated = len(own) == len(rows) - 1 > 0 and bool((own["verdict"] == "separated").all())
        best |= separated & (best.index == rows.index[place])
    return best


def grid(table: pd.DataFrame) -> tuple[list[str], list[list[str]], list[list[bool]]]:
    """Return header, cells as text, and which of them are best."""
    kinds = table.drop_duplicates("column").set_index("column")["kind"]
    order = [c for kind in ("trained", "ood", "mean") for c in kinds.index[kinds == kind]]
    order.sort(key=lambda c: (c in MEANS.values(), list(MEANS.values()).index(c) if c in MEANS.values() else 0))
    cells, best = [], []
    for method, rows in table.groupby("method", sort=False):
        by_column = rows.drop_duplicates("column").set_index("column").to_dict("index")
        cells.append([str(method), *(_text(by_column.get(column)) for column in order)])
        best.append([False, *(bool(by_column.get(column, {}).get("best")) for column in order)])
    return ["Method", *order], cells, best


def _text(cell: Mapping[Any, Any] | None) -> str:
    if cell is None or math.isnan(cell["value"]):
        return "–"
    value, low, high = (float(cell[name]) for name in ("value", "low", "high"))
    return f"{value:.1f}" if math.isnan(low) else f"{value:.1f} ± {max(value - low, high - value):.1f}"


def figure(table: pd.DataFrame) -> Figure:
    """Draw the table."""
    header, cells, best = grid(table)
    widths = [max(len(row[i]) for row in [header, *cells]) + 2 for i in range(len(header))]
    fig = new_figure(max(5.0, 0.068 * sum(widths) + 0.4), 0.27 * (len(cells) + 1) + 0.75)
    ax = fig.subplots()
    ax.set_axis_off()
    edges = [sum(widths[:i]) / sum(widths) for i in range(len(header) + 1)]
    places = [edges[0], *(high for _, high in pairwise(edges[1:]))]
    rows = len(cells) + 1
    for y, line in enumerate([header, *cells]):
        for i, text in enumerate(line):
            bold = y == 0 or best[y - 1][i]
            ax.text(
                places[i], 1 - (y + 0.5) / rows, text, ha="left" if i == 0 else "right", va="center",
                fontsize=8, fontweight="bold" if bold else "normal",
            )  # fmt: skip
    for y, width in ((0, 1.2), (1, 0.7), (rows, 1.2)):
        ax.axhline(1 - y / rows, color="black", linewidth=width)
    ax.set_xlim(-0.005, 1.005)
    ax.set_ylim(-0.02, 1.02)
    footnote(fig, words(table))
    return fig


def words(table: pd.DataFrame) -> str:
    """Say what the numbers, their intervals and bold print mean."""
    rest = table[~_is_base(table["method"])]
    seeds = sorted(set(rest["n_seeds"]))
    many = seeds[-1] > 1
    number = f"{seeds[0]:.0f}" if len(seeds) == 1 else f"{seeds[0]:.0f} to {seeds[-1]:.0f}"
    over = f"{number} seeds, ± half of the 95 % t interval (the wider side)" if many else (
        "one seed, ± 95 % over the evaluation questions (the wider side)"
        if rest["low"].notna().any() else "one seed, no uncertainty given"
    )  # fmt: skip
    counts = rest[rest["kind"] == "mean"].groupby("column", sort=False)["n_tasks"].max()
    means = ", ".join(f"{column} {int(n)}" for column, n in counts.items())
    bold = "Bold: the best mean, separated from every other method" if table["best"].any() else (
        "Nothing is bold: no best mean is separated from every other method"
    )  # fmt: skip
    return (
        f"Scores in % after the last stage; {over}. Tasks behind the means: {means}. Current: each task right after "
        f"its own stage; Last: after all stages; OOD: never trained. {bold} (paired over seeds, Holm)."
    )


def to_markdown(table: pd.DataFrame) -> str:
    """Return the table in Markdown."""
    header, cells, best = grid(table)
    rows = [
        [f"**{t}**" if b else t for t, b in zip(line, marks, strict=True)]
        for line, marks in zip(cells, best, strict=True)
    ]
    escaped = [[text.replace("|", "\\|") for text in row] for row in [header, *rows]]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(header) - 1), *lines[1:], "", words(table), ""])


def to_latex(table: pd.DataFrame) -> str:
    """Return the table in LaTeX; needs the package booktabs."""
    header, cells, best = grid(table)
    rows = [
        [rf"\textbf{{{_latex(t)}}}" if b else _latex(t) for t, b in zip(line, marks, strict=True)]
        for line, marks in zip(cells, best, strict=True)
    ]
    body = [" & ".join(row) + r" \\" for row in rows]
    lines = [
        f"% {words(table)}",
        r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}",
        r"\toprule",
        " & ".join(map(_latex, header)) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ]
    return "\n".join(lines)


def _latex(text: str) -> str:
    for sign in "&%$#_{}":
        text = text.replace(sign, rf"\{sign}")
    return text.replace("±", r"$\pm$").replace("–", "--")


def write_beside(table: pd.DataFrame, stem: Path) -> None:
    """Write the table as ``.md`` and ``.tex`` beside the figure."""
    write_text(stem.with_suffix(".md"), to_markdown(table))
    write_text(stem.with_suffix(".tex"), to_latex(table))
