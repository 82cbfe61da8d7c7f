"""A question to the file system of an address, by fsspec, and what to say where it fails.

What may pass (a lost connection, a busy server) is tried again, a bounded number of times with growing waits.

References
----------
fsspec, "Filesystem Spec", https://filesystem-spec.readthedocs.io: one interface to S3, GCS, HTTP and others.
"""

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from driftlab.errors import CheckpointError, first_line

WAITS = (0.5, 2.0, 8.0)
"""Seconds before the second, third and fourth attempt."""
T = TypeVar("T")
_shared: dict[tuple[int, str], Any] = {}


class RefusedError(CheckpointError):
    """A file or folder that may not be read with the credentials at hand."""


def is_web(url: str) -> bool:
    """Whether an address is one of a web server."""
    return url.startswith(("http://", "https://"))


def ask(url: str, work: Callable[[Any, str], T]) -> T:
    """Do work on the file system of an address, again where its failure may pass.

    Raises
    ------
    FileNotFoundError
        If nothing lies there.
    CheckpointError
        If it failed for another reason, or to the last.
    """
    for wait in (*WAITS, None):
        try:
            return work(*_file_system(url))
        except CheckpointError:
            raise
        except Exception as error:  # every client raises its own errors, those of its transport, and the system's
            cause = _cause(error) if is_web(url) else error
            if wait is None or _is_final(cause):
                raise _explained(url, cause) from None
        time.sleep(wait)
    raise AssertionError("unreachable")


def _cause(error: BaseException) -> BaseException:
    """Return what stands behind an error of the web client, which calls every failure a missing file."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> int:
    """Return the status of a web server's answer; 0 where the error is none."""
    for found in (error, getattr(error, "response", None)):
        for name in ("status", "status_code"):
            if isinstance(status := getattr(found, name, None), int):
                return status
    return 0


def _is_final(error: BaseException) -> bool:
    status = _status(error)
    if status:
        return status < 500 and status not in (408, 425, 429)
    final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, NotImplementedError)
    return isinstance(error, (*final, ImportError)) or "Credentials" in type(error).__name__


def _explained(url: str, error: BaseException) -> Exception:
    """Return the error to raise: what is missing as FileNotFoundError, the rest in one sentence."""
    status, kind = _status(error), type(error).__name__
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return FileNotFoundError(url)
    if status in (401, 403) or isinstance(error, PermissionError) or "Credentials" in kind:
        return RefusedError(
            f"{url}: access was refused ({status or kind}).",
            "Check the address and give credentials where the client of this store looks for them (environment, "
            "~/.config/fsspec).",
        )
    if isinstance(error, ValueError) and "range" in str(error):
        return CheckpointError(
            f"{url}: expected a server that sends ranges of bytes, found one that sends whole files only.",
            "Copy the checkpoint to this machine, or serve it with range requests.",
        )
    attempts = "" if _is_final(error) else f" in {len(WAITS) + 1} attempts"
    return CheckpointError(
        f"{url}: cannot be read{attempts} ({kind}: {first_line(error)}).", "Check network and server, then try again."
    )


def _file_system(url: str) -> tuple[Any, str]:
    """Return a file system and the path in it. One that runs its own loop is shared by the threads of a process."""
    parts = urlsplit(url)
    key = (os.getpid(), f"{parts.scheme}://{parts.netloc}")
    if key in _shared:
        return _shared[key], _shared[key]._strip_protocol(url)
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise CheckpointError(
            f"{url}: expected fsspec to read it with, found none.", "pip install 'driftlab[remote]'"
        ) from None
    try:
        fs, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise _no_client(url, parts.scheme, error) from None
    if fs.async_impl:
        _shared[key] = fs
    return fs, path


def _no_client(url: str, scheme: str, error: Exception) -> CheckpointError:
    from fsspec.registry import known_implementations

    known = known_implementations.get(scheme)
    if known is None or isinstance(error, ValueError):
        return CheckpointError(f"{url}: {scheme}:// cannot be opened ({first_line(error)}).", "Check the address.")
    client = "aiohttp" if is_web(url) else known["class"].partition(".")[0]
    step = "Install what it names." if client == "fsspec" else f"pip install {client}"
    return CheckpointError(
        f"{url}: expected a client for {scheme}:// addresses, found none ({first_line(error)}).", step
    )
