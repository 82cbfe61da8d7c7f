"""Put the page together: read the stored tables, draw the figures as SVG, fill the template."""

import base64
import io
import json
import math
from dataclasses import dataclass, field
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from driftlab import __version__
from driftlab.errors import DriftlabError, ResultsError
from driftlab.files import write_text
from driftlab.results import ResultsDir
from driftlab_analyses import FIGURES
from driftlab_analyses.report.findings import Finding, findings
from driftlab_analyses.report.sections import SECTIONS, Explorer, Section, Table
from driftlab_analyses.style import styled

_CONFIG_LINES = 400


@dataclass(frozen=True)
class _Filled:
    """A section with everything the template needs."""

    id: str
    title: str
    lead: str
    notes: list[str] = field(default_factory=list)
    figures: list[dict[str, str]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    explorer: dict[str, Any] | None = None


def build_report(folder: str | Path, out: str | Path, *, title: str = "", force: bool = False) -> Path:
    """Write the report of one results folder.

    Parameters
    ----------
    folder : str or Path
        What the commands wrote with ``-o``.
    out : str or Path
        The HTML file.
    title : str, optional
        Heading of the page; the folder's name by default.
    force : bool, default False
        Replace a file that is there.

    Returns
    -------
    Path
        ``out``. The page loads nothing: it can be mailed, opened from a disk, printed.

    Raises
    ------
    ResultsError
        If the folder is no results folder or holds no table, or the file is there and ``force`` is not given.
    """
    results, file = ResultsDir.open(folder), Path(out)
    if file.exists() and not force:
        raise ResultsError(f"{file}: expected no such file yet, found one.", "Give --force to replace it.")
    filled = [_fill(section, results) for section in SECTIONS if any(map(results.has, section.tables_read))]
    if not filled:
        raise ResultsError(f"{results.path}: it holds no table yet.", "Run a command that makes one.")
    manifest = results.manifest()
    here = resources.files("driftlab_analyses.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    page = environment.from_string((here / "page.html").read_text(encoding="utf-8")).render(
        css=Markup((here / "page.css").read_text(encoding="utf-8")),
        js=Markup((here / "page.js").read_text(encoding="utf-8")),
        version=__version__,
        title=title or f"Drift report: {results.path.resolve().name}",
        about=_about(manifest),
        facts=_facts(results),
        findings=_grouped(findings(results)),
        sections=filled,
        host=", ".join(f"{key} {value}" for key, value in manifest["host"].items()),
        folder=results.path.name,
        commands=[_command(name, entry) for name, entry in manifest["commands"].items()],
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_text(file, page)


def _fill(section: Section, results: ResultsDir) -> _Filled:
    notes = list(results.read_json(section.remarks).get("remarks", [])) if _has_json(results, section) else []
    figures = []
    for name in section.figures:
        if all(map(results.has, FIGURES[name])):
            try:
                figures.append(_figure(name, results))
            except DriftlabError as error:
                notes.append(f"{name} was not drawn: {str(error).removeprefix(f'{results.path}: ')}")
    tables = [_table(table, results) for table in section.tables if results.has(table.source)]
    explorer = section.explorer
    shown = _explorer(explorer, results) if explorer and results.has(explorer.source) else None
    return _Filled(section.id, section.title, section.lead, notes, figures, [t for t in tables if t["rows"]], shown)


def _has_json(results: ResultsDir, section: Section) -> bool:
    return bool(section.remarks) and (results.path / f"{section.remarks}.json").is_file()


def _figure(name: str, results: ResultsDir) -> dict[str, str]:
    module = import_module(f"driftlab_analyses.{name}")
    with styled():
        figure = module.figure(module.table(results))
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": "driftlab"})
        caption = figure.get_supxlabel()
    title = str(module.__doc__).splitlines()[0].rstrip(".")
    return {"name": name, "title": title, "caption": caption, "svg": base64.b64encode(stream.getvalue()).decode()}


def _table(table: Table, results: ResultsDir) -> dict[str, Any]:
    frame = table.rows(results)
    numeric = [_is_numeric(frame[name]) for name in frame.columns]
    columns = [{"name": name, "numeric": flag} for name, flag in zip(frame.columns, numeric, strict=True)]
    rows = [
        [_cell(value, flag) for value, flag in zip(row, numeric, strict=True)] for row in frame.itertuples(index=False)
    ]
    return {"id": table.id, "title": table.title, "note": table.note, "columns": columns, "rows": rows}


def _explorer(explorer: Explorer, results: ResultsDir) -> dict[str, Any]:
    groups, left_out = explorer.groups(results)
    first = groups[0][1]
    numeric = [all(_is_numeric(rows[name]) for _, rows in groups) for name in first.columns]
    content = {
        "columns": list(first.columns),
        "numeric": numeric,
        "groups": [
            {"name": name, "rows": [[_plain(v) for v in row] for row in rows.itertuples(index=False)]}
            for name, rows in groups
        ],
    }
    text = json.dumps(content, allow_nan=False).replace("<", "\\u003c")  # nothing in it can close the script element
    note = explorer.note + (f" {left_out}" if left_out else "")
    return {"json": Markup(text), "note": note, "file": f"{explorer.source}.parquet"}


def _is_numeric(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and not pd.api.types.is_bool_dtype(column)


def _cell(value: Any, numeric: bool) -> dict[str, Any]:
    plain = _plain(value)
    if plain is None:
        return {"text": "–", "value": None}
    if not numeric:
        return {"text": str(plain), "value": None}
    text = f"{plain}" if isinstance(plain, int) else f"{plain:.6f}" if 0.99 < abs(plain) < 1 else f"{plain:.4g}"
    return {"text": text, "value": repr(plain)}


def _plain(value: Any) -> Any:
    """Return a JSON value: None for what is missing, whole numbers without a point."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return None if not math.isfinite(value) else int(value) if value.is_integer() and abs(value) < 1e15 else value
    return value if isinstance(value, int | str) else str(value)


def _about(manifest: dict[str, Any]) -> str:
    commands = manifest["commands"].values()
    about = next((entry["config"]["about"] for entry in commands if entry["config"].get("about")), "")
    names = ", ".join(f"driftlab {name}" for name in manifest["commands"])
    ends = sorted(entry["end"] for entry in commands if entry["end"])
    return f"{about} Made by {names}, {ends[-1][:10] if ends else 'unfinished'}.".strip()


def _facts(results: ResultsDir) -> list[tuple[str, str]]:
    """Return counts for the head of the page."""
    facts: list[tuple[str, str]] = []
    if results.has("spectral_summary"):
        summary = results.table("spectral_summary")
        model = summary[summary["group_by"] == "model"]
        facts += [("runs", str(model["run"].nunique()))]
        facts += [("checkpoints", str(len(model.loc[model["order"] > 0, ["run", "label"]].drop_duplicates())))]
        facts += [("matrices in each", str(int(model.loc[~model["measure"].str.startswith("pooled"), "n"].max())))]
    if results.has("runs"):
        runs = results.table("runs")
        facts += [("methods and controls", str(runs["method"].nunique())), ("seeds each", str(runs["seed"].nunique()))]
    if results.has("mmd_domains"):
        facts.append(("domains", str(len(results.table("mmd_domains")))))
    return facts


def _grouped(found: list[Finding]) -> list[tuple[str, list[Finding]]]:
    groups = list(dict.fromkeys(finding.group for finding in found))
    return [(group, [finding for finding in found if finding.group == group]) for group in groups]


def _command(name: str, entry: dict[str, Any]) -> dict[str, str]:
    lines = json.dumps(entry["config"], indent=1).splitlines()
    more = [f"... {len(lines) - _CONFIG_LINES} more lines in manifest.json"] if len(lines) > _CONFIG_LINES else []
    return {
        "name": name,
        "line": " ".join(["driftlab", *entry["argv"]]),
        "span": f"{entry['start']} to {entry['end'] or 'unfinished'}",
        "versions": ", ".join(f"{package} {version}" for package, version in entry["versions"].items()),
        "config": "\n".join([*lines[:_CONFIG_LINES], *more]),
    }
