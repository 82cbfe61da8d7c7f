"""What a scan takes beside the numbers, from a rehearsal in a temporary folder with vectors alone."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import torch
from safetensors.torch import save_file

from driftlab.checkpoints.names import place
from driftlab.checkpoints.sequence import CheckpointSequence
from driftlab.checkpoints.tracks import Track
from driftlab.results import ResultsDir
from driftlab.spectral.measures import Plan
from driftlab.tables import summarise
from driftlab.units import Labour

_FEW, _MANY = 1, 17  # checkpoints
_UNITS = 6
_SMALL, _LARGE = 64, 1 << 20  # entries


def rehearse(crowding: float = 1.0) -> dict[str, float]:
    """Return seconds of a ``unit``, a ``row``, a ``line`` of the summary and a ``skim_entry``.

    They are read from the clock, for they hold waiting for the disk, and divided by ``crowding``.
    """
    with tempfile.TemporaryDirectory(prefix="driftlab-") as folder:
        paths = _write(Path(folder), _SMALL, _MANY)
        large = _write(Path(folder) / "large", _LARGE, _FEW)
        _scan(paths[: _FEW + 1], Path(folder) / "first")  # what is loaded on first use is not counted
        few, _ = _scan(paths[: _FEW + 1], Path(folder) / "few")
        many, table = _scan(paths, Path(folder) / "many")
        skimmed, _ = _scan(large, Path(folder) / "skimmed")
    row = max(0.0, many - few) / (_UNITS * (_MANY - _FEW))
    unit = max(0.0, few / _UNITS - _FEW * row)
    skim = max(0.0, skimmed - few) / (_UNITS * (1 + _FEW) * (_LARGE - _SMALL))
    found = {"unit": unit, "row": row, "line": _summary(table), "skim_entry": skim}
    return {name: seconds / crowding for name, seconds in found.items()}


def lines(tracks: Sequence[Track]) -> int:
    """Count the groups of all checkpoints in the summary: the model, its layers, its roles."""
    places = [place(track.name) for track in tracks if track.base is not None]
    groups = 1 + len({p.layer for p in places if p.layer is not None}) + len({p.role for p in places})
    return groups * max((len(track.members) for track in tracks), default=0)


def _write(folder: Path, entries: int, checkpoints: int) -> list[str]:
    paths = []
    for step in range(checkpoints + 1):
        target = folder / f"checkpoint-{step}"
        target.mkdir(parents=True)
        vectors = {f"model.layers.{i}.norm.weight": torch.full((entries,), 1.0 + step) for i in range(_UNITS)}
        save_file(vectors, target / "model.safetensors")
        paths.append(str(target))
    return paths


def _scan(paths: list[str], out: Path) -> tuple[float, pa.Table]:
    """Walk the vectors as a scan does; return the seconds that took, and the rows."""
    tracks = CheckpointSequence.open(paths[1:], paths[0]).tracks()
    results = ResultsDir.create(out, command="svd", config={})
    parts = []
    started = time.perf_counter()
    with Labour(Plan()).here(torch.device("cpu")) as measure:
        for measured in measure([[track] for track in tracks]):
            results.write_part("spectral", measured.name, measured.table)
            parts.append(measured.table)
    return time.perf_counter() - started, pa.concat_tables(parts)


def _summary(table: pa.Table) -> float:
    """Return the seconds of one line of the summary, of rows that hold a value for every measure."""
    frame = table.to_pandas()
    numbers = [name for name, kind in frame.dtypes.items() if kind.kind == "f" and name not in ("layer", "expert")]
    frame[numbers] = 0.5
    frame["status"] = "ok"
    started = time.perf_counter()
    found = summarise(frame).to_pandas()
    keys = found[["run", "label", "group_by", "group"]].drop_duplicates()
    return (time.perf_counter() - started) / len(keys)
