"""Draw every figure whose table is stored."""

from importlib import import_module
from pathlib import Path

from driftlab.errors import DriftlabError, ResultsError, UsageError
from driftlab.results import ResultsDir
from driftlab_analyses import FIGURES
from driftlab_analyses.style import SUFFIXES, save, styled


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
        Figure name and why it was not drawn. Figures of commands that did not write to a folder are not missing,
        unless asked for by name.

    Raises
    ------
    UsageError
        If a name in ``only`` is unknown, or a folder is given twice.
    ResultsError
        If a folder is no results folder, ``out`` holds a figure and ``force`` is not given, or nothing can be drawn.
    """
    for name in only or ():
        if name not in FIGURES:
            raise UsageError(f"Figure {name!r} is unknown: expected one of {', '.join(FIGURES)}.")
    drawn: list[tuple[str, Path]] = []
    missing: list[tuple[str, str]] = []
    names = only or list(FIGURES)
    opened = [(ResultsDir.open(folder), target) for folder, target in _targets(folders, out)]
    if not force:
        _refuse_existing([target / name for _, target in opened for name in names])
    for results, target in opened:
        for name in names:
            if not only and not all(map(results.has, FIGURES[name])):
                continue
            try:
                drawn.append((name, _draw(name, results, target / name)))
            except DriftlabError as error:
                missing.append((name, str(error)))
    if not drawn:
        reasons = "; ".join(why.removesuffix(".") for _, why in missing[:3]) or "no table of one is in the results"
        raise ResultsError(f"No figure could be drawn: {reasons}.")
    return drawn, missing


def _targets(folders: list[Path], out: Path) -> list[tuple[Path, Path]]:
    """Give each results folder its own place in ``out``: its name, after the folder above it where names repeat."""
    if len(folders) == 1:
        return [(folders[0], out)]
    whole = [folder.resolve() for folder in folders]
    names = [folder.name for folder in whole]
    parts = [w.name if names.count(w.name) == 1 else f"{w.parent.name}-{w.name}" for w in whole]
    if len(set(parts)) < len(parts):
        raise UsageError("Results folders: expected different ones, found one twice.")
    return [(folder, out / part) for folder, part in zip(folders, parts, strict=True)]


def _refuse_existing(stems: list[Path]) -> None:
    for stem in stems:
        for suffix in SUFFIXES:
            if stem.with_suffix(suffix).exists():
                raise ResultsError(
                    f"{stem.with_suffix(suffix)}: expected no such figure yet, found one.",
                    "Give --force to replace the figures, or another --out.",
                )


def _draw(name: str, results: ResultsDir, stem: Path) -> Path:
    module = import_module(f"driftlab_analyses.{name}")
    with styled():
        table = module.table(results)
        files = save(module.figure(table), table, stem)
    if hasattr(module, "write_beside"):
        module.write_beside(table, stem)
    return files[1]
