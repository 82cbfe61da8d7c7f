"""Draw every figure whose table is stored."""

from importlib import import_module
from pathlib import Path

from driftlab.errors import DriftlabError, ResultsError, UsageError
from driftlab.results import ResultsDir
from driftlab_analyses import FIGURES
from driftlab_analyses.style import save, styled


def draw_all(
    folders: list[Path], out: Path, *, only: list[str] | None = None, force: bool = False
) -> tuple[list[tuple[str, Path]], list[tuple[str, str]]]:
    """Draw the figures of one or more results folders into ``out``.

    Parameters
    ----------
    folders : list of Path
        Results folders. With several, each gets a folder of its own name in ``out``.
    out : Path
        Where the ``.pdf``, ``.png`` and ``.csv`` files go.
    only : list of str, optional
        Names from :data:`driftlab_analyses.FIGURES`.
    force : bool, default False
        Replace figures that are there already.

    Returns
    -------
    drawn : list of (str, Path)
        Figure name and PNG file.
    missing : list of (str, str)
        Figure name and why it was not drawn.

    Raises
    ------
    UsageError
        If a name in ``only`` is unknown.
    ResultsError
        If a folder is no results folder, ``out`` holds a figure and ``force`` is not given, or nothing can be drawn.
    """
    for name in only or ():
        if name not in FIGURES:
            raise UsageError(f"Figure {name!r} is unknown: expected one of {', '.join(FIGURES)}.")
    drawn: list[tuple[str, Path]] = []
    missing: list[tuple[str, str]] = []
    for folder in folders:
        results = ResultsDir.open(folder)
        target = out / folder.resolve().name if len(folders) > 1 else out
        for name in only or FIGURES:
            if not results.has(FIGURES[name]):
                missing.append((name, f"table {FIGURES[name]} is not in {folder}"))
                continue
            try:
                drawn.append((name, _draw(name, results, target / name, force)))
            except DriftlabError as error:
                if isinstance(error, UsageError):
                    raise
                missing.append((name, str(error)))
    if not drawn:
        reasons = "; ".join(why for _, why in missing[:3])
        raise ResultsError(f"No figure could be drawn: {reasons}.")
    return drawn, missing


def _draw(name: str, results: ResultsDir, stem: Path, force: bool) -> Path:
    if stem.with_suffix(".png").exists() and not force:
        raise UsageError(f"{stem}.png exists.", "Give --force to replace the figures, or another --out.")
    module = import_module(f"driftlab_analyses.{name}")
    with styled():
        table = module.table(results)
        return save(module.figure(table), table, stem)[1]
