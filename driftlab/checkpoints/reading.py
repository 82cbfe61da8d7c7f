"""Tensors of tracks in reading order, read ahead in the background while the last is worked on."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from driftlab.checkpoints.lowrank import LowRank, LowRankUpdate
from driftlab.checkpoints.mapping import map_tensor
from driftlab.checkpoints.tensorfile import WEIGHT_DTYPES, TensorInfo
from driftlab.checkpoints.tracks import Track
from driftlab.errors import CheckpointError, UsageError

MODES = ("read", "mmap")
_READERS = 4  # tensors under way at once where there is a budget: network disks answer slowly, but to many

Read = Tensor | LowRankUpdate | CheckpointError
"""A tensor, an adapter's update of it, or why it cannot be read: one bad file does not stop the others."""


def to_read(track: Track) -> list[TensorInfo]:
    """Return the tensors of a track that are compared: the base first, then every readable member."""
    if track.base is None or track.excluded or track.base.dtype not in WEIGHT_DTYPES or not track.base.numel:
        return []
    members = [m.tensor for m in track.members if m.status == "ok" and m.tensor is not None]
    return [track.base, *members] if members else []


class Reader:
    """How tensors are read, and how much of it was done.

    Parameters
    ----------
    mode : str
        ``read`` copies a tensor from its file, ``mmap`` maps it.
    ahead : int
        Bytes that may be read ahead beyond the next tensor.

    Attributes
    ----------
    counts : Counter
        ``read_bytes`` and ``read_seconds``, the latter summed over readers.

    Raises
    ------
    UsageError
        If the mode is unknown or the number negative.
    """

    def __init__(self, mode: str = "read", ahead: int = 0) -> None:
        if mode not in MODES:
            raise UsageError(f"--io {mode!r} is unknown: expected one of {', '.join(MODES)}.")
        if ahead < 0:
            raise UsageError(f"--prefetch: expected a size of at least 0, found {ahead}.")
        self.mode = mode
        self.ahead = ahead
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def threads(self) -> int:
        """Tensors read at once."""
        return _READERS if self.ahead else 1

    def __call__(self, info: TensorInfo) -> Read:
        """Read one tensor, or say why it cannot be read."""
        started = time.perf_counter()
        try:
            found = self._read(info)
        except CheckpointError as error:
            return error
        with self._lock:
            self.counts["read_bytes"] += info.nbytes
            self.counts["read_seconds"] += time.perf_counter() - started  # type: ignore[assignment]
        return found

    def _read(self, info: TensorInfo) -> Tensor | LowRankUpdate:
        if isinstance(info, LowRank):
            return info.update()
        plain = type(info) is TensorInfo  # another kind is made of what it reads
        return map_tensor(info) if plain and self.mode == "mmap" else info.read()


def prefetched(tracks: list[Track], reader: Reader | None = None) -> Iterator[tuple[Track, Iterator[Read]]]:
    """Yield each track with an iterator over its tensors, in the order of :func:`to_read`.

    Each iterator must be exhausted before the next track is asked for. In memory are the tensor given out, if it is
    still held, the next, and what the reader's budget allows beyond. A member whose tensor is the base's own, as an
    adapter leaves most, is not read again.
    """
    reader = reader or Reader()
    order = [info for track in tracks for info in _distinct(to_read(track))]
    with ThreadPoolExecutor(max_workers=reader.threads) as pool:
        stream = _read_ahead(pool, order, reader)
        for track in tracks:
            yield track, _of_track(to_read(track), stream)


def _distinct(infos: list[TensorInfo]) -> list[TensorInfo]:
    return [info for i, info in enumerate(infos) if not i or info != infos[0]]


def _of_track(infos: list[TensorInfo], stream: Iterator[Read]) -> Iterator[Read]:
    if infos:
        base = next(stream)
        yield base
        for info in infos[1:]:
            yield base if info == infos[0] else next(stream)


def _read_ahead(pool: ThreadPoolExecutor, order: Iterable[TensorInfo], reader: Reader) -> Iterator[Read]:
    """Keep the next tensor under way, and those after it as far as the budget goes."""
    upcoming = iter(order)
    following = next(upcoming, None)
    queue: deque[tuple[Future[Read], int]] = deque()
    while queue or following is not None:
        beyond = sum(nbytes for _, nbytes in list(queue)[2:])
        while following is not None and (len(queue) < 2 or beyond + following.nbytes <= reader.ahead):
            beyond += following.nbytes if len(queue) >= 2 else 0
            queue.append((pool.submit(reader, following), following.nbytes))
            following = next(upcoming, None)
        yield queue.popleft()[0].result()
