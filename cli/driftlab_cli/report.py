"""``driftlab report``: one self-contained HTML page of a results folder."""

from pathlib import Path
from typing import Annotated

import typer

from driftlab_cli.options import Force, Json, Quiet
from driftlab_cli.output import Output


def report(
    results: Annotated[Path, typer.Argument(metavar="OUT", help="Results folder.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.", show_default=False)],
    title: Annotated[str, typer.Option(help="Heading of the page; the folder's name by default.")] = "",
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write everything a results folder holds as one page: findings, tables, figures, provenance.

    Example:  driftlab report out -o report.html
    """
    from driftlab_analyses.report.build import build_report

    say = Output(as_json=as_json, quiet=quiet)
    file = build_report(results, out, title=title, force=force)
    say.data({"report": str(file), "bytes": file.stat().st_size}, str(file))
