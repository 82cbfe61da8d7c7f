"""Names that tell runs apart wherever they were read from, and places apart from names."""

import os
import re
from collections.abc import Sequence
from typing import Protocol


class Folder(Protocol):
    """A folder's name and the folder above it, of this machine or another."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def parent(self) -> "Folder": ...  # noqa: D102


_ADDRESS = re.compile(r"^[A-Za-z][\w+.-]+(::[A-Za-z][\w+.-]+)*:/")


def is_remote(text: object) -> bool:
    """Whether a text is an address such as ``s3://bucket/run``; one slash is enough, as a path keeps one only.

    Examples
    --------
    >>> [is_remote(text) for text in ("s3://b/run", "s3:/b/run", "hf:org/name", "a=s3://b/run", "runs/grpo")]
    [True, True, False, False, False]
    """
    return _ADDRESS.match(str(text)) is not None and not os.path.lexists(str(text))


def distinct(names: Sequence[str], folders: Sequence[Folder | None]) -> list[str]:
    """Give runs of the same name different ones: with their folder, then the folder above it, then a number.

    Examples
    --------
    >>> from pathlib import Path
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


def _with_folder(name: str, folder: Folder | None) -> str:
    return f"{name} ({folder.name})" if folder is not None and name != folder.name else name


def _with_parent(name: str, folder: Folder | None) -> str:
    return f"{folder.parent.name}/{name}" if folder is not None else name
