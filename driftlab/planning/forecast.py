"""What a scan will take: units, bytes, operations, time and memory, for one worker and for several."""

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from driftlab.checkpoints.reading import to_read
from driftlab.checkpoints.tracks import Track
from driftlab.errors import CheckpointError
from driftlab.planning.calibration import calibrate
from driftlab.planning.costs import Shape, cost, is_tracked, measured_shape
from driftlab.planning.overheads import lines
from driftlab.planning.rates import Rates
from driftlab.spectral.measures import Plan

_TRACKED, _EXACT = 2, 10  # float64 copies of a matrix that an update's measures hold at once, as peaks of scans show
_SAMPLE = 256 << 20


@dataclass(frozen=True)
class Work:
    """What one tensor will take.

    Attributes
    ----------
    name : str
    nbytes : int
        To be read.
    operations : float
    seconds, seconds_exact : float
        If every update can be tracked whose shape allows it, and if none can.
    memory, memory_exact : int
        Bytes beyond the interpreter and its libraries, in the same two cases.
    """

    name: str
    nbytes: int
    operations: float
    seconds: float
    seconds_exact: float
    memory: int
    memory_exact: int


def work_of(track: Track, plan: Plan, rates: Rates, bytes_per_second: float) -> Work:
    """Return what one tensor will take; reading overlaps with computing, so the slower of the two counts."""
    infos = to_read(track)
    nbytes = sum(info.nbytes for info in infos)
    reading = nbytes / bytes_per_second
    beside = rates.unit + len(track.members) * rates.row
    shape, count = measured_shape(track, plan), max(0, len(infos) - 1)
    if shape is None:
        entries = sum(info.numel for info in infos)
        seconds = beside + max(reading, entries * rates.skim_entry)
        largest = max((info.nbytes for info in infos), default=0)
        return Work(track.name, nbytes, cost(track, plan), seconds, seconds, 2 * largest, 2 * largest)
    base = rates.base(shape)
    tracked = base + count * rates.checkpoint(shape, plan)
    exact = base + count * rates.checkpoint_if_exact(shape, plan)
    return Work(
        track.name,
        nbytes,
        cost(track, plan),
        beside + max(reading, tracked),
        beside + max(reading, exact),
        _memory(shape, infos[0].nbytes, _TRACKED if is_tracked(shape, plan) else _EXACT),
        _memory(shape, infos[0].nbytes, _EXACT),
    )


def _memory(shape: Shape, stored: int, copies: int) -> int:
    return shape.basis_bytes + copies * 8 * shape.entries + 2 * stored


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Return when the last of ``workers`` is done if units are handed out in this order to whoever is free.

    Examples
    --------
    >>> makespan([3.0, 3.0, 2.0, 2.0, 2.0], 2)
    7.0
    """
    free = [0.0] * min(workers, max(1, len(seconds)))
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


def read_rate(tracks: Sequence[Track]) -> float:
    """Return bytes a second of reading the largest tensor of the last checkpoint; a cached file reads faster.

    Infinite where nothing can be read.
    """
    infos = [info for track in tracks for info in to_read(track)[-1:] if info.nbytes <= _SAMPLE]
    largest = max(infos, key=lambda info: info.nbytes, default=None)
    if largest is None or not largest.nbytes:
        return float("inf")
    started = time.perf_counter()
    try:
        largest.read()
    except CheckpointError:
        return float("inf")
    return largest.nbytes / (time.perf_counter() - started)


def forecast(works: Sequence[Work], workers: int, summary: float = 0.0) -> pd.DataFrame:
    """Return one line for one worker and one for ``workers``, as ``driftlab svd --dry-run`` prints them.

    Columns: ``workers``, ``units``, ``gigabytes`` to read, ``teraflop``, ``seconds`` and ``seconds_if_exact``,
    ``gigabytes_memory`` and ``gigabytes_memory_if_exact`` of all workers together (each holds another of the heaviest
    tensors). ``summary`` is what the
    driver takes when all units are done.
    """
    ordered = sorted(works, key=lambda work: -work.operations)
    memory = sorted((work.memory for work in works), reverse=True)
    memory_exact = sorted((work.memory_exact for work in works), reverse=True)
    rows = []
    for count in sorted({1, workers}):
        rows.append(
            {
                "workers": count,
                "units": len(works),
                "gigabytes": sum(work.nbytes for work in works) / 1e9,
                "teraflop": sum(work.operations for work in works) / 1e12,
                "seconds": summary + makespan([work.seconds for work in ordered], count),
                "seconds_if_exact": summary + makespan([work.seconds_exact for work in ordered], count),
                "gigabytes_memory": sum(memory[:count]) / 1e9,
                "gigabytes_memory_if_exact": sum(memory_exact[:count]) / 1e9,
            }
        )
    return pd.DataFrame(rows)


def expect(
    tracks: Sequence[Track], plan: Plan, device: torch.device, workers: int = 1, threads: int | None = None
) -> pd.DataFrame:
    """Calibrate, and return the :func:`forecast` of a scan on this machine as it is now.

    One more column, ``crowding``, says how many times as long work takes because others use the machine. Several
    workers on one machine share its memory and its caches, which a calibration alone on it does not see.
    """
    alone, crowding = calibrate(device, threads)
    rates, speed = alone.faster(1 / crowding), read_rate(tracks)
    works = [work_of(track, plan, rates, speed) for track in tracks]
    return forecast(works, workers, rates.line * lines(tracks)).assign(crowding=crowding)
