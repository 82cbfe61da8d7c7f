"""What the user names on the command line, to scores: run folders, tables, results files of the harness."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from driftlab.errors import DataError, UsageError
from driftlab.forgetting.harness import read_harness
from driftlab.forgetting.run_scores import read_run_scores
from driftlab.forgetting.score_tables import is_table, read_frame, read_table
from driftlab.forgetting.scores import BASE, Scores
from driftlab.results import ResultsDir
from driftlab.runlog import read_runs


def read_scores(arguments: Sequence[str | Path]) -> list[Scores]:
    """Read every argument: a run folder or glob, a CSV, TSV or Parquet file, or ``[RUN/]LABEL=results.json``.

    Raises
    ------
    UsageError
        If nothing was given, or a results file of the harness comes without a label.
    DataError
        If an argument is none of these.
    """
    if not arguments:
        raise UsageError("No scores were given.", "Give run folders, score tables, or LABEL=results.json.")
    texts = [str(argument) for argument in arguments]
    folders = [text for text in texts if not is_table(Path(text)) and not text.endswith(".json")]
    found = [read_run_scores(read_runs(folders))] if folders else []
    for text in texts:
        if is_table(Path(text)):
            table, remarks = read_table(_existing(text))
            found.append(Scores(table, remarks=remarks))
    results = [_results_file(text) for text in texts if text.endswith(".json")]
    if results:
        tables = [table for table, _ in results]
        found.append(Scores(pd.concat(tables, ignore_index=True), remarks=[r for _, said in results for r in said]))
    return found


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise DataError(f"{path}: expected a score table, found nothing there.")
    return path


def _results_file(text: str) -> tuple[pd.DataFrame, list[str]]:
    name, equals, rest = text.partition("=")
    if not equals or Path(text).exists():
        raise UsageError(
            f"{text}: expected [RUN/]LABEL=FILE, the file itself does not say which checkpoint it is of.",
            "For instance base=base.json sdpo/math@50=results.json.",
        )
    run, _, label = name.rpartition("/")
    if not run and label.lower() != BASE:
        raise UsageError(f"{text}: expected RUN/LABEL=FILE, found no run.", "Only a base may stand without one.")
    table, remarks = read_harness(_existing(rest), run or BASE, label)
    stage, _, step = label.rpartition("@")
    is_stage = label.lower() != BASE
    return table.assign(
        method=table["run"],
        stage=(stage or label) if is_stage else "",
        step=float(step) if stage and step.isdecimal() else float("nan"),
    ), remarks


def read_pairs(path: Path) -> pd.DataFrame:
    """Read a table of distances: ``mmd`` of a results folder, or a CSV, TSV or Parquet file of that form.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    if path.is_dir():
        return ResultsDir.open(path).table("mmd")
    if not is_table(path):
        raise DataError(f"{path}: expected a results folder of driftlab mmd or a table of pairs, found neither.")
    return read_frame(_existing(str(path)))
