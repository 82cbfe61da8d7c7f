"""Files of another machine, asked through fsspec: what lies there, how large it is, and ranges of its bytes.

Nothing is kept on this machine, and no weight file is fetched whole.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from driftlab.checkpoints.attempts import RefusedError, ask, is_web

_PIECE = 1 << 25  # bytes of one request: what is lost with a connection, and held twice while it is copied
_IDENTITY = (
    *("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "blob_id", "sha256", "checksum", "generation"),
    *("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "modified", "created"),
)
"""What file systems call a name of a file's content, and the time of its writing; the first that is told counts."""
FILES = (".safetensors", ".json", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
"""Ends of names that no folder has, unless a listing says so."""
_PROBED = (
    *("config.json", "model.safetensors", "model.safetensors.index.json"),
    *("adapter_config.json", "adapter_model.safetensors", "driftlab.json"),
)
"""Files of a model that are asked for by name where a web server lists no folder."""
UNKNOWN = 1 << 62
"""The number for a file of which nothing but the size is told."""


@dataclass(frozen=True)
class Entry:
    """What a file system says of one file or folder.

    Attributes
    ----------
    is_dir : bool
    size : int or None
        In bytes; None where it is not told.
    identity : str
        Changes when the file does; empty where the file system tells neither a digest nor a time.
    """

    is_dir: bool
    size: int | None = None
    identity: str = ""

    @property
    def stamp(self) -> tuple[int, int]:
        """Size, and a number for the identity: above every time in nanoseconds, it tells another file, not an older."""
        digest = hashlib.sha256(self.identity.encode()).digest()
        return self.size or 0, UNKNOWN + (int.from_bytes(digest[:7], "big") if self.identity else 0)


def look(url: str) -> Entry | None:
    """Return what lies at an address now, past every cache; None where there is nothing.

    Raises
    ------
    CheckpointError
        If it cannot be asked, or access is refused.
    """
    try:
        info = ask(url, _info)
    except FileNotFoundError:
        return None
    page = info.get("mimetype") == "text/html" and not url.endswith(FILES)
    identity = next((f"{key}={info[key]}" for key in _IDENTITY if info.get(key)), "")
    return Entry(info["type"] == "directory" or page, info.get("size"), identity)


@dataclass(frozen=True)
class Listing:
    """The names in a folder, each with whether it is a folder; not ``complete`` where there may be others."""

    names: dict[str, bool]
    complete: bool = True


def listing(url: str) -> Listing:
    """Return what a folder holds; nothing where there is no such folder.

    A web server has no folders: the links of its page are taken for one, or a model's usual files where it shows none.

    Raises
    ------
    CheckpointError
        If it cannot be asked, or access is refused.
    """
    base, refused = url.rstrip("/"), None
    try:
        listed = ask(url, _ls)
    except FileNotFoundError:
        listed = []
    except RefusedError as error:
        listed, refused = [], error
    found = dict(_names(base, listed))
    if not found and is_web(url):
        found = {name: False for name in _PROBED if _is_there(f"{base}/{name}")}
    if not found and refused is not None:
        raise refused
    return Listing(found, complete=not is_web(url))


def _names(base: str, listed: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    for info in listed:
        name, is_dir = str(info["name"]), info["type"] == "directory"
        if is_web(base):
            name = unquote(name).removeprefix(f"{base}/")
            if "/" in name.rstrip("/") or any(mark in name for mark in "?#"):
                continue  # a link to another place, or a way to sort the page
        name = name.rstrip("/").rpartition("/")[2]
        marker = name == base.rpartition("/")[2] and not is_dir and not info.get("size")  # a store's empty "folder"
        if name not in ("", ".", "..") and not marker:
            yield name, is_dir


def _is_there(url: str) -> bool:
    try:
        seen = look(url)
    except RefusedError:  # a store whose folders may not be listed refuses what it does not have
        return False
    return seen is not None and not seen.is_dir


def fetch(url: str, start: int, view: memoryview) -> int:
    """Fill ``view`` with the bytes from ``start`` on, and return how many there were.

    Raises
    ------
    FileNotFoundError
        If the file is gone.
    CheckpointError
        If it cannot be read.
    """
    done = 0
    while done < len(view):
        first, part = start + done, view[done : done + _PIECE]
        got = ask(url, partial(_range, start=first, view=part))
        if not got:
            break
        done += got
    return done


def _info(fs: Any, path: str) -> dict[str, Any]:
    fs.invalidate_cache(path)
    return dict(fs.info(path))


def _ls(fs: Any, path: str) -> list[dict[str, Any]]:
    fs.invalidate_cache(path)
    return list(fs.ls(f"{path}/" if is_web(path) else path, detail=True))


def _range(fs: Any, path: str, *, start: int, view: memoryview) -> int:
    stop = start + len(view)
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & {"http", "https", "hf"}:  # their open files ask for exact ranges; http's also says if it gets none
        web = {"size": stop, "headers": {"Accept-Encoding": "identity"}}  # spares a question, and has bytes as they are
        with fs.open(path, "rb", cache_type="none", **(web if is_web(path) else {})) as handle:
            handle.seek(start)
            raw = handle.read(len(view))
    else:
        raw = fs.cat_file(path, start=start, end=stop)
    if len(raw) > len(view):
        raise ValueError("more bytes than asked for: range requests are not kept to")
    view[: len(raw)] = raw
    return len(raw)
