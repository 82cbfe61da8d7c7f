"""When a scan on many workers is done: a simulation with heavy tails, slow workers and lost ones.

    python benchmarks/schedule.py --model 70b --checkpoints 100 --workers 8 64 512
    python benchmarks/schedule.py --check

Units come heavy first, each to whoever is free. A unit's time is the forecast's, times noise with a heavy tail; some
workers are slow throughout; workers are lost at a constant rate and their unit begins again elsewhere. --check
measures unequal units on one worker here, foretells two workers from them, and runs two.
"""

import argparse
import heapq
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from driftlab.calibration import Rates
from driftlab.costs import Shape
from driftlab.engines import ATTEMPTS
from driftlab.spectral import Plan

MODELS = {"8b": (32, 4096, 1024, 14336), "70b": (80, 8192, 1024, 28672)}
"""Layers, hidden size, width of keys and values, width of the feed-forward: Llama 3 (arXiv 2407.21783)."""


@dataclass(frozen=True)
class Fate:
    """What may go wrong.

    Attributes
    ----------
    tail : float
        Standard deviation of the logarithm of a unit's noise (lognormal, mean 1).
    slow_share, slow_factor : float
        Share of workers that take longer, and how many times.
    losses : float
        Workers lost an hour and worker.
    replace : float
        Seconds until a lost worker is replaced; also what each takes to begin.
    """

    tail: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 1.0
    losses: float = 0.0
    replace: float = 0.0


def simulate(seconds: list[float], workers: int, fate: Fate, seed: int = 0) -> tuple[float, int, int]:
    """Return the makespan in seconds, how many workers were lost, and how many units were given up."""
    draw = np.random.default_rng(seed)
    noise = np.exp(fate.tail * draw.standard_normal(len(seconds)) - fate.tail**2 / 2)
    slow = np.where(np.arange(workers) < round(fate.slow_share * workers), fate.slow_factor, 1.0)
    waiting = deque((float(s * n), 0) for s, n in zip(seconds, noise, strict=True))
    events: list[tuple[float, int, float, int, bool]] = []  # end, worker, work, attempts, lost
    idle = [(fate.replace, worker) for worker in range(workers)]  # free since, worker
    heapq.heapify(idle)
    now, lost, given_up = 0.0, 0, 0
    while waiting or events:
        while waiting and idle:
            free, worker = heapq.heappop(idle)
            work, attempts = waiting.popleft()
            end = max(now, free) + work * slow[worker]
            death = max(now, free) + (draw.exponential(3600 / fate.losses) if fate.losses else math.inf)
            heapq.heappush(events, (min(end, death), worker, work, attempts, death < end))
        now, worker, work, attempts, died = heapq.heappop(events)
        heapq.heappush(idle, (now + fate.replace if died else now, worker))
        if died:
            lost += 1
            given_up += attempts + 1 == ATTEMPTS
            if attempts + 1 < ATTEMPTS:
                waiting.appendleft((work, attempts + 1))
    return now, lost, given_up


def model_seconds(model: str, checkpoints: int, rates: Rates, plan: Plan) -> tuple[list[float], dict[str, float]]:
    """Return every unit's seconds, heavy first, and the sums that stand behind them."""
    layers, hidden, keys, wide = MODELS[model]
    sides = [(hidden, hidden)] * 2 + [(keys, hidden)] * 2 + [(wide, hidden)] * 3
    shapes = [Shape.of(*side, plan) for side in sides]
    seconds = [rates.base(s) + checkpoints * rates.checkpoint(s, plan) for s in shapes] * layers
    entries = layers * sum(s.entries for s in shapes)
    sums = {
        "units": len(seconds),
        "terabytes": 2 * (checkpoints + 1) * entries / 1e12,
        "exaflop": layers
        * sum(s.base_products + s.eigen + checkpoints * 2 * s.tracked_products for s in shapes)
        / 1e18,
        "worker_hours": sum(seconds) / 3600,
        "hours_of_the_heaviest": max(seconds) / 3600,
        "base_gigabytes_kept": 8 * layers * sum(s.d * (s.d + s.D) for s in shapes) / 1e9,
    }
    return sorted(seconds, reverse=True), sums


def plan_on_paper(options: argparse.Namespace) -> None:
    from driftlab.calibration import calibrate

    if options.gpu:  # assumed, not measured: see docs/scale.md
        rates = Rates(1 / 40e12, 1 / 40e12, 1 / 1.5e12, 5e-11, 5e-11, 2e-9)
    else:
        import torch

        rates = calibrate(torch.device("cpu"), 1).faster(options.speedup)
    seconds, sums = model_seconds(options.model, options.checkpoints, rates, Plan())
    print(json.dumps({key: round(value, 4) for key, value in sums.items()}))
    fates = {
        "nothing goes wrong": Fate(),
        "heavy tail (0.5)": Fate(tail=0.5),
        "5 % of workers 3x slow": Fate(slow_share=0.05, slow_factor=3.0),
        "1 loss in 24 h": Fate(losses=1 / 24, replace=60.0),
        "all of these": Fate(0.5, 0.05, 3.0, 1 / 24, 60.0),
    }
    for workers in options.workers:
        ideal = max(sum(seconds) / workers, max(seconds))
        for name, fate in fates.items():
            runs = [simulate(seconds, workers, fate, seed) for seed in range(20)]
            spans = [span for span, _, _ in runs]
            given = max(given for _, _, given in runs)
            line = {
                "workers": workers,
                "fate": name,
                "hours": round(statistics.median(spans) / 3600, 3),
                "worst of 20": round(max(spans) / 3600, 3),
                "efficiency": None if given else round(sum(seconds) / workers / statistics.median(spans), 3),
                "ideal": round(ideal / 3600, 3),
                "lost": statistics.median(lost for _, lost, _ in runs),
                "given up": given,
            }
            print(json.dumps(line), flush=True)


# -- checked here -------------------------------------------------------------------------------------------------


def write_unequal(folder: Path, units: int) -> list[str]:
    import torch
    from safetensors.torch import save_file

    paths = []
    for step in range(3):
        tensors = {}
        for i in range(units):
            shape = [(256, 512), (384, 768), (512, 1024), (256, 2048)][i % 4]
            base, move = (torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in (i, 1000 * step + i))
            tensors[f"model.layers.{i}.up_proj.weight"] = (base + (1e-3 * move if step else 0.0)).bfloat16()
        target = folder / f"checkpoint-{step}"
        target.mkdir(parents=True)
        save_file(tensors, target / "model.safetensors")
        paths.append(str(target))
    return paths


def times_here(paths: list[str], out: str, workers: int, include: list[str] | None) -> dict[str, float]:
    """Scan with local workers and return when each unit was done, seconds after the start."""
    import time

    from driftlab.checkpoints import CheckpointSequence
    from driftlab.engines import LocalEngine
    from driftlab.results import ResultsDir
    from driftlab.scan import scan

    ends: dict[str, float] = {}
    started = time.perf_counter()
    scan(
        CheckpointSequence.open(paths[1:], paths[0]),
        Plan(),
        ResultsDir.create(out, command="svd", config={}),
        device="cpu",
        include=include,
        engine=LocalEngine(workers, 1),
        on_unit=lambda nbytes, name: ends.__setitem__(name, time.perf_counter() - started),
    )
    ends.pop("resumed")
    return ends


def begin(paths: list[str], out: Path, workers: int, include: list[str] | None = None) -> subprocess.Popen:
    command = [sys.executable, __file__, "--here", json.dumps([paths, str(out), workers, include])]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True)


def ends_of(process: subprocess.Popen) -> list[tuple[str, float]]:
    output, _ = process.communicate()
    return sorted(json.loads(output.splitlines()[-1]).items(), key=lambda item: item[1])


def durations(ends: list[tuple[str, float]]) -> dict[str, float]:
    """Return each unit's time on one worker; the first one's includes the worker's start and is left out."""
    return {name: end - ends[i][1] for i, (name, end) in enumerate(ends[1:])}


def check(units: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_unequal(folder / "data", units)
        alone = ends_of(begin(paths, folder / "one", 1))
        seconds = durations(alone)
        # what two at once cost each other on this machine, from two independent scans of one half each
        halves = [[rf"layers\.{i}\." for i in range(units) if i // 4 % 2 == k] for k in range(2)]
        pair = [begin(paths, folder / f"half-{k}", 1, halves[k]) for k in range(2)]
        shared = [durations(ends_of(process)) for process in pair]
        crowding = sum(sum(half.values()) for half in shared) / sum(
            seconds[n] for half in shared for n in half if n in seconds
        )
        both = ends_of(begin(paths, folder / "two", 2))
    after = both[1][1]  # both workers have begun
    rest = [crowding * seconds.get(name, 0.0) for name, _ in both[2:]]
    foretold, _, _ = simulate(rest, 2, Fate())
    print(
        json.dumps(
            {
                "units": len(rest),
                "one worker, seconds": round(sum(seconds.values()), 2),
                "crowding": round(crowding, 3),
                "two workers foretold": round(foretold, 2),
                "measured": round(both[-1][1] - after, 2),
                "foretold / measured": round(foretold / (both[-1][1] - after), 3),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), default="70b")
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--speedup", type=float, default=1.0, help="A worker against one thread of this machine.")
    parser.add_argument("--gpu", action="store_true", help="Assumed rates of a data-centre GPU.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--here", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(times_here(*json.loads(options.here))))
    elif options.check:
        check(options.units)
    else:
        plan_on_paper(options)


if __name__ == "__main__":
    main()
