"""``driftlab figures``: every figure whose table is there, as PDF, PNG and the CSV of its numbers."""

from pathlib import Path
from typing import Annotated

import typer

from driftlab_cli.options import Force, Json, Quiet
from driftlab_cli.output import Output


def figures(
    results: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Results folders.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures.", show_default=False)],
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these figures.")] = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Draw every figure whose table is in the results folders.

    Example:  driftlab figures out -o figures
    """
    import pandas as pd

    from driftlab_analyses.draw import draw_all

    say = Output(as_json=as_json, quiet=quiet)
    drawn, missing = draw_all(results, out, only=only, force=force)
    for name, why in missing:
        say.note(f"{name}: {why}")
    say.result(pd.DataFrame([{"figure": name, "file": str(file)} for name, file in drawn]))
