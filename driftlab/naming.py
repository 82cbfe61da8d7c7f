"""Names that tell runs apart wherever they were read from."""

from collections.abc import Sequence
from pathlib import Path


def distinct(names: Sequence[str], folders: Sequence[Path | None]) -> list[str]:
    """Give runs of the same name different ones: with their folder, then the folder above it, then a number.

    Examples
    --------
    >>> distinct(["grpo", "grpo", "sdpo"], [Path("a/seed0"), Path("a/seed1"), Path("a/sdpo")])
    ['grpo (seed0)', 'grpo (seed1)', 'sdpo']
    >>> distinct(["x", "x"], [None, None])
    ['x #1', 'x #2']
    """
    found = list(names)
    for style in (_with_folder, _with_parent, None):
        before = list(found)
        for i, (name, folder) in enumerate(zip(before, folders, strict=True)):
            if before.count(name) > 1:
                found[i] = style(name, folder) if style else f"{name} #{before[: i + 1].count(name)}"
    return found


def _with_folder(name: str, folder: Path | None) -> str:
    return f"{name} ({folder.name})" if folder is not None and name != folder.name else name


def _with_parent(name: str, folder: Path | None) -> str:
    return f"{folder.parent.name}/{name}" if folder is not None else name
