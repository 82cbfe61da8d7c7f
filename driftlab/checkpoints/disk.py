"""Files as they lie on disk: only regular ones are opened, and small ones only up to a limit.

A named pipe would wait for ever and a device has no end; both can stand under the name of a weight file.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from driftlab.checkpoints.attempts import RefusedError
from driftlab.checkpoints.remote import AnyPath, RemotePath
from driftlab.checkpoints.transfer import fetch
from driftlab.errors import CheckpointError

_MAX_JSON = 256 << 20


Stamp = tuple[int, int]
"""Size and modification time; of a remote file, a number for its ETag or what else identifies its content."""


def stamp_of(file: AnyPath) -> Stamp:
    """Return what tells of a regular file whether it has changed.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    if isinstance(file, RemotePath):
        return _remote_stamp(file)
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
    return found.st_size, found.st_mtime_ns


def _remote_stamp(file: RemotePath) -> Stamp:
    try:
        seen = file.entry()
    except FileNotFoundError:
        raise _missing(file) from None
    if seen.is_dir:
        raise CheckpointError(f"{file}: expected a file, found a folder.", "Check the path.")
    return seen.stamp


def read_range(file: AnyPath, start: int, view: memoryview) -> tuple[int, Stamp]:
    """Fill ``view`` with the bytes of a file from ``start`` on.

    Returns
    -------
    got : int
        How many bytes there were.
    stamp : (int, int)
        The file's, at that time.

    Raises
    ------
    CheckpointError
        If the file cannot be read.
    """
    if isinstance(file, RemotePath):
        return _fetch(file, start, view), stamp_of(file)
    try:
        with file.open("rb", buffering=0) as handle:
            found = os.fstat(handle.fileno())
            handle.seek(start)
            return _read_into(handle, view), (found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from None


def read_piece(file: AnyPath, start: int, count: int) -> bytes:
    """Return ``count`` bytes of a file from ``start`` on, or as many as there are.

    Raises
    ------
    CheckpointError
        If the file cannot be read.
    """
    buffer = bytearray(count)
    view = memoryview(buffer)
    got = _fetch(file, start, view) if isinstance(file, RemotePath) else read_range(file, start, view)[0]
    return bytes(view[:got])


def _fetch(file: RemotePath, start: int, view: memoryview) -> int:
    try:
        return fetch(file.url, start, view)
    except FileNotFoundError:
        raise _missing(file) from None


def _read_into(handle: Any, view: memoryview) -> int:
    done = 0
    while done < len(view):
        got = handle.readinto(view[done : done + (1 << 28)])
        if not got:
            break
        done += got
    return done


def read_json(file: AnyPath) -> Any:
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
        return json.loads(read_piece(file, 0, size).decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_object(file: AnyPath) -> dict[str, Any]:
    """Return a small JSON object; an absent or damaged file is an empty one.

    Raises
    ------
    CheckpointError
        If a remote file is there but could not be fetched: that may pass, and must not change what is measured.
    """
    try:
        if isinstance(file, RemotePath) and not file.exists():
            return {}
        content = read_json(file)
    except (RefusedError, ValueError):  # a store whose folders may not be listed refuses what it does not have
        return {}
    except CheckpointError:
        if isinstance(file, RemotePath):
            raise
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


def _missing(file: AnyPath) -> CheckpointError:
    if isinstance(file, Path) and file.is_symlink():
        return CheckpointError(
            f"{file}: expected a file, found a link to {file.readlink()}, which does not exist.",
            "Download the model again or repair the link.",
        )
    return CheckpointError(f"{file}: expected a file, found nothing.", "Check the path.")
