"""The ``driftlab`` command: the list of its subcommands and the one place where errors become exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but some rows failed, 130 interrupted.
"""

import os
import sys
from typing import Annotated

import typer

from driftlab import __version__
from driftlab.errors import DriftlabError, UsageError
from driftlab_cli.figures import figures
from driftlab_cli.forgetting import forgetting
from driftlab_cli.ls import ls
from driftlab_cli.mmd import mmd
from driftlab_cli.policy import policy
from driftlab_cli.report import report
from driftlab_cli.respond import respond
from driftlab_cli.similarity import similarity
from driftlab_cli.study import study
from driftlab_cli.svd import svd
from driftlab_cli.train import train
from driftlab_cli.watch import watch

app = typer.Typer(
    name="driftlab",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        print(f"driftlab {__version__}")
        raise typer.Exit


@app.callback()
def _driftlab(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """How far a language model moved during post-training, and what it forgot."""


app.command()(ls)
app.command()(svd)
app.command()(watch)
app.command()(mmd)
app.command()(forgetting)
app.command()(respond)
app.command()(similarity)
app.command()(policy)
app.command()(figures)
app.command()(report)
app.command()(study)
app.command()(train)


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; never shows a traceback unless ``DRIFTLAB_DEBUG=1``."""
    try:
        app(arguments, prog_name="driftlab", standalone_mode=True)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # the reader has closed, `driftlab ls | head` for instance
            return 0
        if stop.code == 130:
            print("interrupted; what was finished is kept, and --resume continues there", file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except DriftlabError as error:
        if os.environ.get("DRIFTLAB_DEBUG") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except Exception as error:
        if os.environ.get("DRIFTLAB_DEBUG") == "1":
            raise
        print(
            f"error: unexpected {type(error).__name__}: {error}. Set DRIFTLAB_DEBUG=1 for the traceback.",
            file=sys.stderr,
        )
        return 1
    return 0
