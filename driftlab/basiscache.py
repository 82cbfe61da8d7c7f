"""Decompositions of bases kept on disk, so that later checkpoints of the same base need no new ones.

An entry is one ``.safetensors`` file under a name made of everything the decomposition depends on: the bytes of the
matrix, its type and shape, torch's version, the device, the processor's instruction set, the number of threads. So a
hit gives the bits that a new decomposition would give. Entries are written whole or not at all, checked by a digest
when read, and made again where they are damaged; several runs on several machines may share a folder.
"""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from driftlab.errors import ResultsError
from driftlab.files import replacing
from driftlab.spectral.decomposition import Decomposition

GIGABYTE = 1_000_000_000
_VERSION = 1  # of the entries and of the way bases are decomposed: another number makes all entries strangers
_PARTS = ("U", "sigma", "V", "sigma_error")
_SLACK = 2.0  # seconds by which the clock of the disk may lag behind
_STALE = 86_400  # seconds after which a temporary file is what a killed run left


class BasisCache:
    """A folder of decompositions, bounded in size; those used longest ago make room.

    Entries used or written since this object was made stay: a scan passes over its bases in one order, and with too
    little room for all of them, plain "least recently used" would throw each out just before its turn came again.

    Parameters
    ----------
    folder : Path
        Made if it is missing.
    limit : int
        Bytes of all entries together.

    Attributes
    ----------
    counts : Counter
        ``hits``, ``misses``, ``damaged``, ``stored``, ``full`` (no room), ``unwritable``, ``evicted``.

    Raises
    ------
    ResultsError
        If the folder cannot be made.
    """

    def __init__(self, folder: Path, limit: int = 50 * GIGABYTE) -> None:
        self.folder = folder
        self.limit = limit
        self.counts: Counter[str] = Counter()
        self.since = time.time() - _SLACK
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(
                f"Basis cache {folder}: expected a folder that can be made, found {error.strerror}.",
                "Choose another --basis-cache.",
            ) from None

    def key(self, base: Tensor, device: torch.device) -> str:
        """Return the name of a base's entry: SHA-256 over all that its decomposition depends on."""
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
        threads = 0 if device.type == "cuda" else torch.get_num_threads()
        facts = (_VERSION, torch.__version__, device.type, where, threads, str(base.dtype), tuple(base.shape))
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(_bytes(base))
        return digest.hexdigest()

    def get(self, key: str, device: torch.device) -> Decomposition | None:
        """Return an entry, or None where there is none that is whole."""
        file = self._file(key)
        if not file.exists():
            self.counts["misses"] += 1
            return None
        try:
            found = _load(file, device)
        except (OSError, SafetensorError, KeyError, ValueError):
            found = None
        if found is None:
            self.counts["damaged"] += 1
            with suppress(OSError):
                file.unlink()
            return None
        self.counts["hits"] += 1
        with suppress(OSError):
            os.utime(file)
        return found

    def put(self, key: str, svd: Decomposition) -> None:
        """Keep a decomposition, if there is or can be made room; a full or read-only disk is counted, not raised."""
        tensors, metadata = _pack(svd)
        size = sum(tensor.nbytes for tensor in tensors.values())
        if not self._make_room(size):
            self.counts["full"] += 1
            return
        try:
            with replacing(self._file(key)) as temporary:
                save_file(tensors, temporary, metadata)
        except (OSError, SafetensorError):
            self.counts["unwritable"] += 1
            return
        self.counts["stored"] += 1

    def _make_room(self, size: int) -> bool:
        """Delete what was used longest ago until ``size`` bytes fit, and say whether they do."""
        entries = sorted(self._entries())
        room = self.limit - sum(nbytes for _, nbytes, _ in entries)
        removable = [entry for entry in entries if entry[0] < self.since]
        if room + sum(nbytes for _, nbytes, _ in removable) < size:
            return False
        for _, nbytes, file in removable:
            if room >= size:
                break
            with suppress(OSError):
                file.unlink()
                self.counts["evicted"] += 1
            room += nbytes
        return True

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Yield (last use, bytes, file) of every entry, and remove what killed runs left."""
        for file in self.folder.iterdir():
            try:
                found = file.stat()
            except OSError:  # another run has just removed it
                continue
            if file.suffix == ".safetensors":
                yield found.st_mtime, found.st_size, file
            elif file.suffix == ".tmp" and time.time() - found.st_mtime > _STALE:
                file.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _pack(svd: Decomposition) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return what to write; a matrix laid out column by column is stored transposed, as products tell layouts apart."""
    tensors, turned = {}, []
    for name in _PARTS:
        part = getattr(svd, name).detach().cpu()
        if part.ndim == 2 and not part.is_contiguous() and part.mT.is_contiguous():
            turned.append(name)
            part = part.mT
        tensors[name] = part.contiguous()
    return tensors, {"route": svd.route, "turned": " ".join(turned), "sha256": _digest(tensors)}


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in _PARTS:
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _load(file: Path, device: torch.device) -> Decomposition | None:
    with safe_open(file, framework="pt") as content:
        metadata = content.metadata() or {}
        tensors = {name: content.get_tensor(name) for name in _PARTS}
    if metadata.get("sha256") != _digest(tensors):
        return None
    turned = metadata["turned"].split()
    parts = {name: (part.mT if name in turned else part).to(device) for name, part in tensors.items()}
    return Decomposition(route=metadata["route"], **parts)
