"""One tensor of the base through all checkpoints: a row for each, with numbers or with why there are none."""

import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from driftlab.basiscache import BasisCache
from driftlab.checkpoints.lowrank import LowRankUpdate
from driftlab.checkpoints.names import place
from driftlab.checkpoints.reading import Read, to_read
from driftlab.checkpoints.tracks import Member, Track
from driftlab.crew import Crew
from driftlab.errors import CheckpointError, NumericalError
from driftlab.spectral.basis import Basis, bad_values
from driftlab.spectral.decomposition import Decomposition
from driftlab.spectral.drift import Drift, measure, measure_adapter
from driftlab.spectral.masks import changed_mask
from driftlab.spectral.measures import MEASURES, Plan


def measure_track(
    track: Track,
    read: Iterator[Read],
    plan: Plan,
    device: torch.device,
    crew: Crew,
    svd: Decomposition | None = None,
    cache: BasisCache | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one row for each checkpoint of a track; ``read`` gives its tensors, the base first.

    Its decomposition is ``svd`` where it has been made already, or taken from the ``cache`` and put there.
    """
    comparable = bool(to_read(track))
    base: Basis | Tensor | str = _base(next(read), track, plan, device, svd, cache) if comparable else ""
    jobs = (_job(base, read, track, member, comparable, device) for member in track.members)
    return crew.run(jobs, track.base.numel if track.base else 0)


def failed_track(track: Track, reason: str) -> list[dict[str, Any]]:
    """Return the rows of a track that could not be measured: failed where there was something to compare."""
    nothing = repeat(CheckpointError(reason))
    comparable = bool(to_read(track))
    return [_job(reason, nothing, track, m, comparable, torch.device("cpu"))() for m in track.members]


def _job(
    base: Basis | Tensor | str,
    read: Iterator[Read],
    track: Track,
    member: Member,
    comparable: bool,
    device: torch.device,
) -> Callable[[], dict[str, Any]]:
    """Return what is left to do for one row, its tensor read."""
    row = _row(track, member)
    if track.excluded:
        return lambda: row | {"status": "skipped", "reason": "left out by --include/--exclude"}
    if member.status != "ok" or member.tensor is None:
        return lambda: row | {"status": member.status, "reason": member.reason}
    if not comparable:
        return lambda: row | {"status": "skipped", "reason": track.left_out}
    new = next(read)

    def compare() -> dict[str, Any]:
        started = time.perf_counter()
        result = _compare(base, new, track, member, device)
        return row | result | {"seconds": time.perf_counter() - started}

    return compare


def _base(
    loaded: Read,
    track: Track,
    plan: Plan,
    device: torch.device,
    svd: Decomposition | None,
    cache: BasisCache | None,
) -> Basis | Tensor | str:
    """Return the basis, the plain tensor where spectral measures do not apply, or why there is neither."""
    if isinstance(loaded, CheckpointError):
        return f"base: {loaded}"
    assert isinstance(loaded, Tensor)
    if track.left_out:
        bad = bad_values(loaded)
        return f"base: expected finite values, found {bad}." if bad else loaded
    try:
        if svd or cache is None:
            return Basis(loaded.to(device), plan, svd).warm()
        key = cache.key(loaded, device)
        kept = cache.get(key, device)
        basis = Basis(loaded.to(device), plan, kept).warm()
        if kept is None:
            cache.put(key, basis.svd)
        return basis
    except NumericalError as error:
        return str(error)
    except (MemoryError, torch.OutOfMemoryError):
        return _out_of_memory(device)


def _compare(
    base: Basis | Tensor | str, new: Read, track: Track, member: Member, device: torch.device
) -> dict[str, Any]:
    if isinstance(base, str):
        return {"status": "failed", "reason": base}
    if isinstance(new, CheckpointError):
        return {"status": "failed", "reason": str(new)}
    if isinstance(base, Tensor):
        return _left_out(base, new, member.reason or track.left_out)
    try:
        key = f"{track.name}\0{member.run}\0{member.checkpoint.label}"
        if isinstance(new, LowRankUpdate):
            drift = measure_adapter(base, new.B.to(device), new.A.to(device), new.scale, key)
            return columns(drift, base.plan)
        return columns(measure(base, new.to(device), key), base.plan)
    except NumericalError as error:
        return {"status": "failed", "reason": str(error)}
    except (MemoryError, torch.OutOfMemoryError):
        return {"status": "failed", "reason": _out_of_memory(device)}


def _out_of_memory(device: torch.device) -> str:
    return f"out of memory on {device}: measure this matrix alone (--include) on another device"


def _left_out(base: Tensor, new: Tensor | LowRankUpdate, reason: str) -> dict[str, Any]:
    """Count the changed entries of a tensor that the spectral measures leave out, as far as both go."""
    factors = (new.B, new.A) if isinstance(new, LowRankUpdate) else (new,)
    bad = " and ".join(filter(None, map(bad_values, factors)))
    if bad:
        return {"status": "failed", "reason": f"checkpoint: expected finite values, found {bad}."}
    if isinstance(new, LowRankUpdate):
        density = _adapted_density(base, new)
    else:
        density = _density(base if base.shape == new.shape else base[: new.shape[0]], new)
    return {"status": "skipped", "reason": reason, "update_density": density, "update_sparsity": 1.0 - density}


def _density(base: Tensor, new: Tensor) -> float:
    """Share of changed entries, in slices that bound the memory."""
    left, right = base.flatten(), new.flatten()
    step = 1 << 24
    changed = sum(
        int(torch.count_nonzero(changed_mask(left[i : i + step], right[i : i + step])))
        for i in range(0, left.numel(), step)
    )
    return changed / left.numel()


def _adapted_density(base: Tensor, update: LowRankUpdate) -> float:
    """Share of entries that a low-rank update changes, in slices that bound the memory."""
    step = max(1, (1 << 22) // base.shape[1])
    slices = ((i, min(i + step, base.shape[0])) for i in range(0, base.shape[0], step))
    changed = (changed_mask(base[i:j], update.rows_on(base, i, j)) for i, j in slices)
    return sum(int(torch.count_nonzero(part)) for part in changed) / base.numel()


def columns(drift: Drift, plan: Plan) -> dict[str, Any]:
    """Return what a row of the table ``spectral`` says about one measured matrix."""
    return {
        "status": "ok",
        "reason": drift.reason,
        **drift.values,
        **{f"{name}_error": value for name, value in drift.errors.items() if name in MEASURES},
        **{f"{name}_null": value for name, value in drift.nulls.items()},
        "angle_rank": drift.angle_rank,
        "mask_rank": drift.mask_rank,
        "mask_fraction": plan.mask_fraction,
        "method": drift.method,
    }


def _row(track: Track, member: Member) -> dict[str, Any]:
    info = member.tensor or track.base
    assert info is not None
    where = place(track.name)
    shape = [*info.shape, None, None]
    checkpoint = member.checkpoint
    return {
        "run": member.run,
        "label": checkpoint.label,
        "stage": checkpoint.stage,
        "step": checkpoint.step,
        "order": checkpoint.order,
        "matrix": track.name,
        "layer": where.layer,
        "role": where.role,
        "expert": where.expert,
        "rows": shape[0],
        "cols": shape[1] if len(info.shape) == 2 else None,
        "numel": info.numel,
        "base_dtype": track.base.dtype if track.base else None,
        "dtype": member.tensor.dtype if member.tensor else None,
    }
