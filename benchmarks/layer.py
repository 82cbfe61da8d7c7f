"""One layer shaped like an 8B model's, bf16 and sharded: peak memory and time of a scan beside what was promised.

    python benchmarks/layer.py --shrink 2 --checkpoints 2 --prefetch 0.1
    python benchmarks/layer.py --shrink 1 --wide 12288 --checkpoints 3          # a true-size layer of Qwen3 8B

Memory may be basis + two matrices + the read-ahead budget + 300 MB above an interpreter that has scanned a tiny
sequence, where a basis is the matrix as stored and in float64, its vectors in both precisions, and its masks; the time
is foretold by the forecast of --dry-run, made just before the scan and once more just after it.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from driftlab.checkpoints import CheckpointSequence
from driftlab.planning.calibration import calibrate
from driftlab.planning.costs import Shape
from driftlab.planning.forecast import Work, read_rate, work_of
from driftlab.results import ResultsDir
from driftlab.scan import scan
from driftlab.spectral import Plan

HIDDEN, KEYS, WIDE = 4096, 1024, 14336
MB = 1e6
SLACK = 300.0


def shapes(shrink: int, wide: int = WIDE) -> dict[str, tuple[int, int]]:
    """Return the matrices of a Llama 3 8B layer, or one of another width, each side divided by ``shrink``."""
    h, k, w = HIDDEN // shrink, KEYS // shrink, wide // shrink
    attention = {"q_proj": (h, h), "k_proj": (k, h), "v_proj": (k, h), "o_proj": (h, h)}
    forward = {"gate_proj": (w, h), "up_proj": (w, h), "down_proj": (h, w)}
    return {f"model.layers.0.self_attn.{name}.weight": shape for name, shape in attention.items()} | {
        f"model.layers.0.mlp.{name}.weight": shape for name, shape in forward.items()
    }


def write(folder: Path, sizes: dict[str, tuple[int, int]], checkpoints: int) -> list[str]:
    """Write a base and checkpoints in two shards each, one tensor in memory at a time as far as it goes."""
    paths = []
    for step in range(checkpoints + 1):
        target = folder / f"checkpoint-{step}"
        target.mkdir(parents=True)
        shards: list[dict[str, torch.Tensor]] = [{}, {}]
        for i, (name, shape) in enumerate(sizes.items()):
            base = torch.randn(shape, generator=torch.Generator().manual_seed(i)) / shape[1] ** 0.5
            if step:
                base += (
                    1e-3
                    * torch.randn(shape, generator=torch.Generator().manual_seed(1000 * step + i))
                    / shape[1] ** 0.5
                )
            shards[i % 2][name] = base.bfloat16()
        index = {}
        for number, shard in enumerate(shards, 1):
            file = f"model-{number:05d}-of-00002.safetensors"
            save_file(shard, target / file)
            index |= dict.fromkeys(shard, file)
        (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        paths.append(str(target))
    return paths


def allowed(sizes: dict[str, tuple[int, int]], prefetch: float) -> float:
    """Return megabytes: the largest basis as it is held, two of its matrices in float64, the budget, the slack."""
    found = [Shape.of(*size, Plan()) for size in sizes.values()]
    return max(shape.basis_bytes + 2 * 8 * shape.entries for shape in found) / MB + 1000 * prefetch + SLACK


def peak() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def works(paths: list[str]) -> tuple[dict[str, Work], float]:
    """Return what each tensor will take one thread that has a core for itself, and how crowded the machine is now."""
    tracks = CheckpointSequence.open(paths[1:], paths[0]).tracks()
    (rates, crowding), speed = calibrate(torch.device("cpu"), 1), read_rate(tracks)
    return {track.name: work_of(track, Plan(), rates, speed) for track in tracks}, crowding


def scan_here(paths: list[str], tiny: list[str], out: str, prefetch: float, io: str) -> dict[str, Any]:
    """Scan in this process; return seconds foretold and measured, and megabytes above the start."""
    ends: list[tuple[str, float, float]] = []

    def run(given: list[str], name: str) -> ResultsDir:
        sequence = CheckpointSequence.open(given[1:], given[0])
        results = ResultsDir.create(f"{out}/{name}", command="svd", config={})
        ends[:] = [("", time.perf_counter(), time.process_time())]
        scan(sequence, Plan(), results, device="cpu", prefetch=round(1e9 * prefetch), io=io, on_unit=unit_done)
        ends.append(("", time.perf_counter(), time.process_time()))
        return results

    def unit_done(nbytes: int, name: str) -> None:
        ends.append((name, time.perf_counter(), time.process_time()))

    run(tiny, "tiny")
    before = peak()
    table = run(paths, "layer").table("spectral")
    used = peak() - before
    units = {
        name: {"seconds": wall - earlier[1], "cpu_seconds": cpu - earlier[2]}
        for earlier, (name, wall, cpu) in itertools.pairwise(ends)
        if name and name != "resumed"
    }
    found = {"seconds": ends[-1][1] - ends[0][1], "cpu_seconds": ends[-1][2] - ends[0][2], "used_mb": used}
    after, crowding = works(paths)
    found |= {"foretold_cpu_after": sum(work.seconds for work in after.values()), "crowding_after": crowding}
    return found | {"methods": table["method"].value_counts().to_dict(), "units": units}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shrink", type=int, default=2)
    parser.add_argument("--wide", type=int, default=WIDE, help="Width of the feed-forward part.")
    parser.add_argument("--checkpoints", type=int, default=2)
    parser.add_argument("--prefetch", type=float, default=0.1, help="GB")
    parser.add_argument("--io", default="read")
    parser.add_argument("--here", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(scan_here(*json.loads(options.here))))
        return
    sizes = shapes(options.shrink, options.wide)
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder) / "layer", sizes, options.checkpoints)
        tiny = write(Path(folder) / "tiny", {"model.layers.0.mlp.up_proj.weight": (8, 12)}, 1)
        arguments = json.dumps([paths, tiny, f"{folder}/out", options.prefetch, options.io])
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        load = os.getloadavg()
        foretold, crowding = works(paths)
        run = subprocess.run(
            [sys.executable, __file__, "--here", arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
    found = json.loads(run.stdout)
    for name, took in found.pop("units").items():
        line = {"foretold_cpu": foretold[name].seconds, **took, "foretold_mb": foretold[name].memory / MB}
        print(f"{name} {sizes[name]}: {json.dumps({key: round(value, 2) for key, value in line.items()})}")
    total = sum(work.seconds for work in foretold.values())
    found |= {
        "foretold": total * crowding,
        "foretold_cpu": total,
        "crowding": crowding,
        "allowed_mb": allowed(sizes, options.prefetch),
        "foretold / seconds": total * crowding / found["seconds"],
        "foretold / seconds, CPU": total / found["cpu_seconds"],
        "load_before": load[0],
        "load_after": os.getloadavg()[1],
    }
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in found.items()}))


if __name__ == "__main__":
    main()
