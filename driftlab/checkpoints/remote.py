"""Addresses such as ``s3://bucket/run``: paths on another machine that answer what a local path is asked.

Folders are listed once and remembered until :func:`forget`; sizes and times are asked for anew each time, so that a
file that changes is noticed.
"""

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from driftlab.checkpoints.attempts import RefusedError
from driftlab.checkpoints.transfer import FILES, Entry, Listing, fetch, listing, look
from driftlab.errors import CheckpointError, UsageError
from driftlab.naming import is_remote

_WEB = ("http", "https")
_listings: dict[str, Listing] = {}


@dataclass(frozen=True, order=True)
class RemotePath:
    """An address, with the questions of :class:`pathlib.Path` that checkpoints ask.

    Parameters
    ----------
    url : str
        ``scheme://place/path`` without a slash at its end.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, child: str) -> "RemotePath":
        """Return an address below, or beside with ``..``, never above the bucket or host."""
        root, path = self._split()
        joined = posixpath.normpath(posixpath.join("/", path, child))
        return RemotePath(f"{root}{joined}".rstrip("/"))

    def _split(self) -> tuple[str, str]:
        scheme, _, rest = self.url.partition("://")
        place, _, path = rest.partition("/")
        return f"{scheme}://{place}", path

    # -- its name ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on."""
        return posixpath.splitext(self.name)[1]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return posixpath.splitext(self.name)[0]

    @property
    def parent(self) -> "RemotePath":
        """The address above; that of a bucket or host is itself."""
        return RemotePath(self.url.rpartition("/")[0]) if self._split()[1] else self

    @property
    def parents(self) -> list["RemotePath"]:
        """The addresses above, the next first."""
        return [] if self.parent == self else [self.parent, *self.parent.parents]

    def resolve(self) -> "RemotePath":
        """Return itself: there are no links."""
        return self

    # -- what lies there --------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is a file or folder."""
        beside = self._beside()
        if beside is not None and (beside.complete or self.name in beside.names):
            return self.name in beside.names
        return self.is_dir() or look(self.url) is not None

    def is_dir(self) -> bool:
        """Whether there is a folder."""
        beside = self._beside()
        if beside is not None:
            return beside.names.get(self.name, False)
        if self.name.endswith(FILES):
            return False
        try:
            seen = look(self.url)
        except RefusedError:  # a web server that shows no folder may still send what is in it
            if not self._listing().names:
                raise
            return True
        if seen is not None and not seen.is_dir:
            return False
        names = self._listing().names  # what is below is answered from it
        return seen is not None or bool(names)

    def is_file(self) -> bool:
        """Whether there is a file."""
        return self.exists() and not self.is_dir()

    def is_symlink(self) -> bool:
        """Return False: there are no links."""
        return False

    def iterdir(self) -> Iterator["RemotePath"]:
        """Yield what a folder holds."""
        for name in self._listing().names:
            yield RemotePath(f"{self.url}/{name}")

    def glob(self) -> list["RemotePath"]:
        """Return the addresses that this one matches as a pattern, part by part; hidden names need a dot."""
        root, path = self._split()
        found = [RemotePath(root)]
        for part in path.split("/"):
            if has_magic(part):
                found = [child for folder in found if folder.is_dir() for child in folder.iterdir()]
                found = [c for c in found if fnmatchcase(c.name, part) and (part[0] == "." or c.name[0] != ".")]
            else:
                found = [folder / part for folder in found]
        return [place for place in found if place.exists()]

    def _listing(self) -> Listing:
        if self.url not in _listings:
            _listings[self.url] = listing(self.url)
        return _listings[self.url]

    def _beside(self) -> Listing | None:
        """Return what lies beside it, itself included, if a folder above was listed before; else None."""
        above = self.parent
        if above != self and above.url in _listings:
            return _listings[above.url]
        if not any(folder.url in _listings for folder in above.parents):
            return None
        return above._listing() if above.is_dir() else Listing({})

    # -- its bytes --------------------------------------------------------------------------------------------------

    def entry(self) -> Entry:
        """Return what its file system says of it now.

        Raises
        ------
        FileNotFoundError
            If nothing lies there.
        CheckpointError
            If it cannot be asked, or its size is not told.
        """
        seen = look(self.url)
        if seen is None:
            raise FileNotFoundError(self.url)
        if seen.size is None and not seen.is_dir:
            raise CheckpointError(f"{self.url}: expected a file of known size, found one whose server tells none.")
        return seen

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the whole content of a small file as text."""
        buffer = bytearray(self.entry().size or 0)
        got = fetch(self.url, 0, memoryview(buffer))
        return buffer[:got].decode(encoding)


AnyPath = Path | RemotePath


def located(text: str | Path) -> AnyPath:
    """Return a path of this machine, or the address that a text is.

    Raises
    ------
    UsageError
        If the address has parts that are not supported.

    Examples
    --------
    >>> located("s3://bucket/run/").name
    'run'
    >>> located("runs/grpo")
    PosixPath('runs/grpo')
    """
    given = str(text)
    if not is_remote(given):
        return Path(text)
    scheme, _, rest = given.partition(":")
    scheme, rest = scheme.lower(), rest.lstrip("/")
    if scheme in ("file", "local"):
        return Path(f"/{rest}")
    if "::" in given.partition(":/")[0]:
        raise UsageError(f"{given}: expected one address, found a chain of file systems.", "Give the address itself.")
    user, at, host = rest.partition("/")[0].rpartition("@")
    if (at and (":" in user or scheme in _WEB)) or (scheme in _WEB and ("?" in rest or "#" in rest)):
        raise UsageError(
            f"{scheme}://{host}/...: expected a plain address, found one with a password, a query or a fragment, which "
            "results would keep.",
            "Give the store's own address (s3://, az://) and credentials in the environment.",
        )
    return RemotePath(f"{scheme}://{rest}".rstrip("/"))


def absolute(path: AnyPath) -> AnyPath:
    """Return a path from the root on, without dots."""
    return path if isinstance(path, RemotePath) else Path(os.path.abspath(path))


def on_disk(path: AnyPath, what: str) -> Path:
    """Return a path of this machine.

    Raises
    ------
    CheckpointError
        If it is an address: ``what`` is read from a disk only.
    """
    if isinstance(path, RemotePath):
        raise CheckpointError(
            f"{path}: expected safetensors, found {what}, which are read from a disk of this machine only.",
            "Copy the checkpoint here, or save it as safetensors.",
        )
    return path


def forget() -> None:
    """Forget what folders held, so that new checkpoints are seen."""
    _listings.clear()
