"""When a scan on many workers is done: a simulation with heavy tails, slow workers and lost ones.

    python benchmarks/schedule.py --model 70b --checkpoints 100 --workers 8 64 512
    python benchmarks/schedule.py --check

Units come heavy first, each to whoever is free. A unit's time is the forecast's, times noise with a heavy tail; some
workers are slow throughout; workers are lost at a constant rate and their unit begins again elsewhere. --check
runs two workers here on unequal units and puts the times these took into the same schedule.
"""

import argparse
import heapq
import json
import math
import statistics
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from driftlab.engines import ATTEMPTS
from driftlab.planning.costs import Shape
from driftlab.planning.rates import Rates
from driftlab.spectral import Plan

UNEQUAL = [(256, 512), (384, 768), (512, 1024), (256, 2048)]
MODELS = {"8b": (32, 4096, 1024, 14336), "70b": (80, 8192, 1024, 28672)}
"""Layers, hidden size, width of keys and values, width of the feed-forward: Llama 3 (arXiv 2407.21783)."""

THREAD = Rates(1.21e-11, 2.30e-11, 2.55e-11, 3.71e-8, 1.52e-8, 8.05e-8)
"""Measured: one thread of an AMD EPYC core, CPU seconds, as ``driftlab.planning.calibration.calibrate`` counts them."""
GPU = Rates(1 / 40e12, 1 / 40e12, 1 / 1.5e12, 5e-11, 5e-11, 2e-9)
"""Assumed, not measured: a data-centre GPU at 40 Tflop/s in float32 and float64 and 1.5 in eigendecompositions."""


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
    rates = (GPU if options.gpu else THREAD).faster(options.speedup)
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


def check(units: int, workers: int = 2) -> None:
    """Scan unequal units with local workers, and schedule the times they took on paper."""
    import time

    from workers import write

    from driftlab.checkpoints import CheckpointSequence
    from driftlab.engines import LocalEngine
    from driftlab.results import ResultsDir
    from driftlab.scan import scan

    took: dict[str, float] = {}
    order: list[str] = []
    ends: list[float] = []

    class Recording(LocalEngine):
        def run(self, units, labour):
            order.extend(unit.name for unit in units)
            for finished in super().run(units, labour):
                took[finished.unit.name] = finished.result[-1].counts["busy_seconds"]
                ends.append(time.perf_counter())
                if len(ends) == 1:
                    ends.insert(0, ends[0] - took[finished.unit.name])  # when the first unit was begun
                yield finished

    with tempfile.TemporaryDirectory() as name:
        paths = write(Path(name) / "data", [UNEQUAL[i % len(UNEQUAL)] for i in range(units)])
        results = ResultsDir.create(f"{name}/out", command="svd", config={})
        sequence = CheckpointSequence.open(paths[1:], paths[0])
        scan(sequence, Plan(), results, device="cpu", engine=Recording(workers, 1))
    seconds = [took[unit] for unit in order]
    foretold, _, _ = simulate(seconds, workers, Fate())
    measured = ends[-1] - ends[0]
    found = {
        "units": len(seconds),
        "lightest": min(seconds),
        "heaviest": max(seconds),
        "foretold": foretold,
        "measured": measured,
        "foretold / measured": foretold / measured,
        "efficiency": sum(seconds) / workers / measured,
    }
    print(json.dumps({key: round(value, 3) for key, value in found.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), default="70b")
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--speedup", type=float, default=1.0, help="How many times as fast a worker is.")
    parser.add_argument(
        "--gpu", action="store_true", help="Assumed rates of a GPU instead of measured ones of a thread."
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--units", type=int, default=32)
    options = parser.parse_args()
    if options.check:
        check(options.units)
    else:
        plan_on_paper(options)


if __name__ == "__main__":
    main()
