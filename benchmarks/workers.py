"""How well workers share a scan: steady rates of one and of several, all in one run, threads pinned to one.

    python benchmarks/workers.py --units 40 --engine ray

The ceiling is what the machine gives: as many independent scans at once as there are workers, each of its own share.
Workers can come no further than that. ``busy`` is the share of the time in which workers had a unit in their hands:
what the engine itself loses is the rest, however crowded the machine.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTLED = 4  # units that are done before the clock starts: processes have begun by then


def write(folder: Path, shapes: list[tuple[int, int]]) -> list[str]:
    """Write a base and two checkpoints of matrices of given shapes."""
    import torch
    from safetensors.torch import save_file

    paths = []
    for step in range(3):
        tensors = {}
        for i, shape in enumerate(shapes):
            base, move = (torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in (i, 1000 * step + i))
            tensors[f"model.layers.{i}.up_proj.weight"] = (base + (1e-3 * move if step else 0.0)).bfloat16()
        target = folder / f"checkpoint-{step}"
        target.mkdir(parents=True)
        save_file(tensors, target / "model.safetensors")
        paths.append(str(target))
    return paths


def rate_here(
    paths: list[str], out: str, engine: str, workers: int, include: list[str] | None
) -> tuple[float, float, float]:
    """Scan in this process; return units a second after the first few, the share workers were busy, CPU-s a unit."""
    from driftlab.checkpoints import CheckpointSequence
    from driftlab.engines import choose_engine
    from driftlab.results import ResultsDir
    from driftlab.scan import scan
    from driftlab.spectral import Plan

    ends: list[float] = []
    spent: list[float] = []

    def note(nbytes: float, name: str) -> None:
        if any(re.search(part, name) for part in include or ["^model"]):  # what is left out passes by here too
            ends.append(time.perf_counter())
            spent.append(time.process_time())

    results = ResultsDir.create(out, command="svd", config={})
    scan(
        CheckpointSequence.open(paths[1:], paths[0]),
        Plan(),
        results,
        device="cpu",
        include=include,
        engine=None if engine == "none" else choose_engine(engine, workers, 1),
        on_unit=note,
    )
    settled, seconds = len(ends) - SETTLED, ends[-1] - ends[SETTLED - 1]
    counts = results.manifest()["commands"]["svd"]["counts"]
    busy = counts.get("busy_seconds", 0.0) * settled / len(ends)
    here = (spent[-1] - spent[SETTLED - 1]) / settled
    cpu = counts["busy_cpu_seconds"] / len(ends) if "busy_cpu_seconds" in counts else here
    return settled / seconds, busy / (workers * seconds), cpu


def begin(paths: list[str], out: Path, engine: str, workers: int, include: list[str] | None = None) -> subprocess.Popen:
    command = [sys.executable, __file__, "--here", json.dumps([paths, str(out), engine, workers, include])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen) -> tuple[float, float, float]:
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a scan failed")
    rate, busy, cpu = json.loads(output.splitlines()[-1])
    return rate, busy, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=40)
    parser.add_argument("--rows", type=int, default=384)
    parser.add_argument("--cols", type=int, default=768)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", action="append", choices=["local", "ray"])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--here", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(rate_here(*json.loads(options.here))))
        return
    n = options.workers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write(folder / "data", options.units * [(options.rows, options.cols)])
        shares = [[rf"layers\.{i}\." for i in range(k, options.units, n)] for k in range(n)]
        for turn in range(options.repeat):
            single, _, alone = result(begin(paths, folder / f"one-{turn}", "none", 1))
            together = [begin(paths, folder / f"share-{turn}-{k}", "none", 1, shares[k]) for k in range(n)]
            ceiling = sum(result(process)[0] for process in together)
            line = {"one": single, "ceiling / (N one)": ceiling / (n * single)}
            for engine in options.engine or ["local", "ray"]:
                several, busy, cpu = result(begin(paths, folder / f"{engine}-{turn}", engine, n))
                line |= {
                    f"{engine} / (N one)": several / (n * single),
                    f"{engine} / ceiling": several / ceiling,
                    f"{engine} busy": busy,
                    f"{engine} CPU-s a unit / one": cpu / alone,
                }
            print(json.dumps({key: round(value, 3) for key, value in line.items()}), flush=True)


if __name__ == "__main__":
    main()
