"""The work of a scan in units: the tensors of one unit through all checkpoints, by whichever process takes it."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from driftlab import __version__
from driftlab.basiscache import GIGABYTE, BasisCache
from driftlab.checkpoints.reading import Reader, prefetched, to_read
from driftlab.checkpoints.tracks import Track
from driftlab.crew import Crew
from driftlab.devices import exact_math, resolve_device
from driftlab.errors import CheckpointError, DriftlabError
from driftlab.rows import failed_track, measure_track
from driftlab.spectral.basis import bad_values
from driftlab.spectral.decomposition import Decomposition, decompose_many
from driftlab.spectral.measures import Plan
from driftlab.tables import SPECTRAL

_TOGETHER = 1 << 24  # entries whose bases a GPU decomposes at once; about 16 float64 copies of them are held


@dataclass(frozen=True)
class Measured:
    """What became of one tensor: its rows, and what was counted meanwhile (``cache_hits``, ...)."""

    name: str
    table: pa.Table
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Labour:
    """What every worker of a scan must know; a :class:`driftlab.engines.base.Labour`.

    Attributes
    ----------
    plan : Plan
        What to measure.
    device : str
        Where; a worker of several takes the GPU of its number where the name is ``cuda``.
    threads : int, optional
        Threads of each worker.
    basis_cache : Path, optional
        Folder of decompositions made before.
    cache_limit : int
        Its size in bytes.
    io : str
        ``read`` or ``mmap``.
    prefetch : int
        Bytes that each worker may read ahead beyond the next tensor.
    version : str
        The driver's driftlab, which the workers must share.
    """

    plan: Plan
    device: str = "cpu"
    threads: int | None = None
    basis_cache: Path | None = None
    cache_limit: int = 50 * GIGABYTE
    io: str = "read"
    prefetch: int = 0
    version: str = field(default=__version__)

    @contextmanager
    def start(self, worker: int) -> Iterator[Callable[[list[Track]], list[Measured]]]:
        """Begin work in a worker process; its units are groups of tracks."""
        if self.version != __version__:
            raise DriftlabError(
                f"Worker {worker}: expected driftlab {self.version} as in the driver, found {__version__}.",
                "Install the same version on every node.",
            )
        if self.threads:
            torch.set_num_threads(self.threads)
        with self.here(_own_device(self.device, worker)) as measure:
            yield lambda group: _timed(measure, group)

    @contextmanager
    def here(self, device: torch.device) -> Iterator[Callable[[list[list[Track]]], Iterator[Measured]]]:
        """Begin work on a device of this process."""
        cache = BasisCache(self.basis_cache, self.cache_limit) if self.basis_cache else None
        reader = Reader(self.io, self.prefetch)
        with exact_math(), Crew(device) as crew:
            yield lambda groups: self._measure(groups, device, crew, reader, cache)

    def _measure(
        self, groups: list[list[Track]], device: torch.device, crew: Crew, reader: Reader, cache: BasisCache | None
    ) -> Iterator[Measured]:
        first = {group[0].name: group for group in groups}
        ahead: dict[str, Decomposition] = {}
        for track, read in prefetched([track for group in groups for track in group], reader):
            if track.name in first:
                ahead = _decompose_ahead(first[track.name], device, cache)
            rows = list(measure_track(track, read, self.plan, device, crew, ahead.pop(track.name, None), cache))
            yield Measured(track.name, pa.Table.from_pylist(rows, schema=SPECTRAL), _counted(reader, cache))


def _timed(measure: Callable[[list[list[Track]]], Iterator[Measured]], group: list[Track]) -> list[Measured]:
    """Measure a group, and count for how long a worker was busy with it."""
    started, cpu = time.perf_counter(), time.process_time()
    found = list(measure([group]))
    found[-1].counts["busy_seconds"] = time.perf_counter() - started
    found[-1].counts["busy_cpu_seconds"] = time.process_time() - cpu
    return found


def _counted(reader: Reader, cache: BasisCache | None) -> dict[str, float]:
    """Return what was counted since the last time, and begin again."""
    counts: dict[str, float] = dict(reader.counts)
    reader.counts.clear()
    if cache is not None:
        counts |= {f"cache_{name}": count for name, count in cache.counts.items()}
        cache.counts.clear()
    return counts


def _own_device(name: str, worker: int) -> torch.device:
    if name == "cuda":
        return torch.device("cuda", worker % max(1, torch.cuda.device_count()))
    return resolve_device(name)


def given_up(track: Track, reason: str) -> Measured:
    """Return the rows of a tensor whose workers were lost: failed where it was to be compared."""
    rows = failed_track(track, f"{reason}: measure this matrix alone (--include) with fewer --workers")
    return Measured(track.name, pa.Table.from_pylist(rows, schema=SPECTRAL))


def slim(track: Track) -> Track:
    """Return a track without what its checkpoints hold of other tensors: that would travel with every unit."""
    light = {id(m.checkpoint): replace(m.checkpoint, weights=None, names={}) for m in track.members}
    return replace(track, members=[replace(m, checkpoint=light[id(m.checkpoint)]) for m in track.members])


def in_file_order(tracks: list[Track]) -> list[Track]:
    """Order tracks as the base's files hold them, so that every file is read from its start to its end."""
    return sorted(tracks, key=_place)


def _place(track: Track) -> tuple[bool, str, int]:
    info = track.base
    return (info is None, str(info.file), info.start) if info else (True, "", 0)


def groups(tracks: list[Track], device: torch.device) -> list[list[Track]]:
    """Return the tracks one by one, or for a GPU in groups of one shape whose small bases are decomposed together.

    The groups depend on the shapes alone, not on free memory or workers: a batched routine may differ from the single
    one in the last bits.
    """
    if device.type != "cuda":
        return [[track] for track in tracks]
    shapes: dict[tuple[int, ...], list[Track]] = {}
    for track in tracks:
        shapes.setdefault(track.base.shape if track.base and not track.left_out else (), []).append(track)
    found = []
    for shape, members in shapes.items():
        size = max(1, min(64, _TOGETHER // max(1, math.prod(shape)))) if shape else len(members)
        found += [members[i : i + size] for i in range(0, len(members), size)]
    return found


def _decompose_ahead(group: list[Track], device: torch.device, cache: BasisCache | None) -> dict[str, Decomposition]:
    """Decompose the bases of a group together; those that cannot be read or are not finite are left to their turn.

    They are read once more when their turn comes: a base is one file of many.
    """
    bases: dict[str, Tensor] = {}
    keys: dict[str, str] = {}
    found: dict[str, Decomposition] = {}
    for track in group if len(group) > 1 else ():
        if to_read(track) and not track.left_out and track.base is not None:
            try:
                loaded = track.base.read()
            except CheckpointError:
                continue
            if bad_values(loaded):
                continue
            if cache is not None:
                keys[track.name] = cache.key(loaded, device)
                kept = cache.get(keys[track.name], device)
                if kept is not None:
                    found[track.name] = kept
                    continue
            bases[track.name] = loaded.to(device).double()
    if bases:
        found |= zip(bases, decompose_many(list(bases.values())), strict=True)
    if cache is not None:
        for name in bases:
            cache.put(keys[name], found[name])
    return found
