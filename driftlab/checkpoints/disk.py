"""Files as they lie on disk: only regular ones are opened, and small ones only up to a limit.

A named pipe would wait for ever and a device has no end; both can stand under the name of a weight file.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from driftlab.errors import CheckpointError

_MAX_JSON = 256 << 20


def stamp_of(file: Path) -> tuple[int, int]:
    """Return size and modification time of a regular file, by which a later change is seen.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    try:
        found = file.stat()
    except FileNotFoundError:
        raise _missing(file) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{file}: cannot be read ({why}).") from None
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or device"
        raise CheckpointError(f"{file}: expected a file, found {what}.", "Check the path.")
    return stamp(found)


def stamp(found: os.stat_result) -> tuple[int, int]:
    """Return size and modification time."""
    return found.st_size, found.st_mtime_ns


def read_json(file: Path) -> Any:
    """Return the content of a small JSON file.

    Raises
    ------
    CheckpointError
        If there is no regular file, or it is larger than an index or a configuration can be.
    ValueError
        If it is not JSON.
    """
    size, _ = stamp_of(file)
    if size > _MAX_JSON:
        raise CheckpointError(f"{file}: expected at most {_MAX_JSON} bytes, found {size}.")
    try:
        return json.loads(file.read_bytes().decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from None


def read_object(file: Path) -> dict[str, Any]:
    """Return a small JSON object; an absent or damaged file is an empty one."""
    try:
        content = read_json(file)
    except (CheckpointError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def shown(value: object) -> str:
    """Return a value as a message shows it: its repr, cut to what fits a sentence.

    Examples
    --------
    >>> shown("F9")
    "'F9'"
    """
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_name(name: object) -> bool:
    """Whether a text can be the name of a tensor: printable, not empty, of a length that a message can hold."""
    return isinstance(name, str) and 0 < len(name) <= 500 and name.isprintable()


def _missing(file: Path) -> CheckpointError:
    if file.is_symlink():
        return CheckpointError(
            f"{file}: expected a file, found a link to {file.readlink()}, which does not exist.",
            "Download the model again or repair the link.",
        )
    return CheckpointError(f"{file}: expected a file, found nothing.", "Check the path.")
