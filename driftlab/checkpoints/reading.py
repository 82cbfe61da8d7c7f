"""Tensors of tracks in reading order, one read ahead in the background while the last is worked on."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from driftlab.checkpoints.lowrank import LowRank, LowRankUpdate
from driftlab.checkpoints.tensorfile import WEIGHT_DTYPES, TensorInfo
from driftlab.checkpoints.tracks import Track
from driftlab.errors import CheckpointError

Read = Tensor | LowRankUpdate | CheckpointError
"""A tensor, an adapter's update of it, or why it cannot be read: one bad file does not stop the others."""


def to_read(track: Track) -> list[TensorInfo]:
    """Return the tensors of a track that are compared: the base first, then every readable member."""
    if track.base is None or track.excluded or track.base.dtype not in WEIGHT_DTYPES or not track.base.numel:
        return []
    members = [m.tensor for m in track.members if m.status == "ok" and m.tensor is not None]
    return [track.base, *members] if members else []


def prefetched(tracks: list[Track]) -> Iterator[tuple[Track, Iterator[Read]]]:
    """Yield each track with an iterator over its tensors, in the order of :func:`to_read`.

    Each iterator must be exhausted before the next track is asked for. Two tensors are in memory at most: the one
    given out, if it is still held, and the next. A member whose tensor is the base's own, as an adapter leaves most,
    is not read again.
    """
    order = [info for track in tracks for info in _distinct(to_read(track))]
    with ThreadPoolExecutor(max_workers=1) as pool:
        stream = _read_ahead(pool, order)
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


def _read_ahead(pool: ThreadPoolExecutor, order: Iterable[TensorInfo]) -> Iterator[Read]:
    pending = None
    for info in order:
        following = pool.submit(_read, info)
        if pending is not None:
            yield pending.result()
        pending = following
    if pending is not None:
        yield pending.result()


def _read(info: TensorInfo) -> Read:
    try:
        return info.update() if isinstance(info, LowRank) else info.read()
    except CheckpointError as error:
        return error
