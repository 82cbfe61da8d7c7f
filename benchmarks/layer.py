"""One layer shaped like an 8B model's, bf16 and sharded: peak memory and time of a scan beside what was promised.

    python benchmarks/layer.py --shrink 2 --checkpoints 2 --prefetch 0.1

Memory may be basis + two matrices + the read-ahead budget + 300 MB above an interpreter that has scanned a tiny
sequence; the time is foretold by the forecast of --dry-run, made in the same process just before.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, KEYS, WIDE = 4096, 1024, 14336
MB = 1e6
SLACK = 300.0


def shapes(shrink: int) -> dict[str, tuple[int, int]]:
    """Return the matrices of a Llama 3 8B layer, each side divided by ``shrink``."""
    h, k, w = HIDDEN // shrink, KEYS // shrink, WIDE // shrink
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
    """Return megabytes: the largest basis, two of its matrices, the budget, the slack."""
    entries = {shape: shape[0] * shape[1] for shape in sizes.values()}
    vectors = {shape: min(shape) * sum(shape) for shape in entries}
    return max(8 * (3 * entries[s] + vectors[s]) for s in entries) / MB + 1000 * prefetch + SLACK


def peak() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def scan_here(paths: list[str], tiny: list[str], out: str, prefetch: float, io: str) -> dict[str, float]:
    """Scan in this process; return seconds foretold and measured, and megabytes above the start."""
    from driftlab.checkpoints import CheckpointSequence
    from driftlab.planning.forecast import expect
    from driftlab.results import ResultsDir
    from driftlab.scan import scan
    from driftlab.spectral import Plan

    def run(given: list[str], name: str) -> float:
        sequence = CheckpointSequence.open(given[1:], given[0])
        started = time.perf_counter()
        results = ResultsDir.create(f"{out}/{name}", command="svd", config={})
        scan(sequence, Plan(), results, device="cpu", prefetch=round(1e9 * prefetch), io=io)
        return time.perf_counter() - started

    run(tiny, "tiny")
    before = peak()
    cpu = time.process_time()
    seconds = run(paths, "layer")
    cpu = time.process_time() - cpu
    used = peak() - before
    tracks = CheckpointSequence.open(paths[1:], paths[0]).tracks()
    foretold = expect(tracks, Plan(), torch.device("cpu"))
    return {"seconds": seconds, "cpu_seconds": cpu, "foretold": float(foretold["seconds"][0]), "used_mb": used}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shrink", type=int, default=2)
    parser.add_argument("--checkpoints", type=int, default=2)
    parser.add_argument("--prefetch", type=float, default=0.1, help="GB")
    parser.add_argument("--io", default="read")
    parser.add_argument("--here", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(scan_here(*json.loads(options.here))))
        return
    sizes = shapes(options.shrink)
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder) / "layer", sizes, options.checkpoints)
        tiny = write(Path(folder) / "tiny", {"model.layers.0.mlp.up_proj.weight": (8, 12)}, 1)
        arguments = json.dumps([paths, tiny, f"{folder}/out", options.prefetch, options.io])
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [sys.executable, __file__, "--here", arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
    found = json.loads(run.stdout)
    found |= {
        "allowed_mb": allowed(sizes, options.prefetch),
        "foretold / seconds": found["foretold"] / found["seconds"],
    }
    print(json.dumps({key: round(value, 3) for key, value in found.items()}))


if __name__ == "__main__":
    main()
