"""Tracked drift beside the plain loop, the exact path and the floor, on the same matrices in one run.

    python benchmarks/tracking.py --base FOLDER --new FOLDER     a real model and a checkpoint of it
    python benchmarks/tracking.py --shapes qwen3-0.6b            one layer's shapes, random matrices
    python benchmarks/tracking.py --shapes qwen3-8b --device cuda

What each line computes, for one added checkpoint:

plain           float32 torch.linalg.svd of base and checkpoint, angles on both sides, masks, sparsity, both norms
plain, cached   the same with the base's decomposition kept
exact           driftlab --method exact --null none: all measures in float64, base decomposed once
tracked         driftlab --method auto --null none: all measures with their errors, base decomposed once
tracked+null    the same with the sign null
floor           reading both files and the two products UᵀD and XV in float32

Matrices are taken one after the other by every line in turn, so that all see the same machine. ``--threads 1`` is the
fair setting for small matrices; with more, tracked lines measure two checkpoints at once as the scan does.
"""

import argparse
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from plain import PlainBase, plain_drift
from torch import Tensor

from driftlab.checkpoints.weights import open_weights
from driftlab.devices import exact_math
from driftlab.spectral import Basis, Plan, measure
from driftlab.spectral.drift import difference
from driftlab.spectral.update import Update

LAYERS = {
    "smollm2-135m": [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)],
    "qwen3-0.6b": [(2048, 1024), (1024, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (3072, 1024), (1024, 3072)],
    "qwen3-4b": [(4096, 2560), (1024, 2560), (1024, 2560), (2560, 4096), (9728, 2560), (9728, 2560), (2560, 9728)],
    "qwen3-8b": [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (12288, 4096), (12288, 4096), (4096, 12288)],
}
Pair = tuple[str, Callable[[], Tensor], Callable[[], Tensor]]
T = TypeVar("T")


def real_pairs(base: Path, new: Path, every: int) -> Iterator[Pair]:
    before, after = open_weights(base), open_weights(new)
    names = [n for n, t in before.tensors.items() if len(t.shape) == 2 and "embed" not in n and "lm_head" not in n]
    for name in names[::every]:
        yield name, before.tensors[name].read, after.tensors[name].read


def random_pairs(shapes: list[tuple[int, int]], size: float = 1e-3) -> Iterator[Pair]:
    """Power-law spectra and AdamW-like updates, stored in bf16."""
    generator = torch.Generator().manual_seed(0)
    for i, (m, n) in enumerate(shapes):
        W = torch.randn(m, n, generator=generator) * torch.linspace(2.0, 0.05, n).clamp(min=0.05)
        W = W / W.norm() * (m * n) ** 0.5 * 0.02
        new = W + size * W.norm() / (m * n) ** 0.5 * torch.sign(torch.randn(m, n, generator=generator))
        before, after = W.bfloat16(), new.bfloat16()
        yield f"{i}: {m}x{n}", (lambda t=before: t), (lambda t=after: t)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Times jobs on a device, alone or as many at once as there are threads."""

    def __init__(self, device: torch.device, threads: int, repeat: int) -> None:
        self.device, self.threads, self.repeat = device, threads, repeat
        self.pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def once(self, job: Callable[[], T]) -> tuple[float, T]:
        """Return seconds and result of one run."""
        synchronise(self.device)
        started = time.perf_counter()
        result = job()
        synchronise(self.device)
        return time.perf_counter() - started, result

    def best(self, job: Callable[[], object]) -> float:
        """Return the least seconds of several runs."""
        return min(self.once(job)[0] for _ in range(self.repeat))

    def side_by_side(self, job: Callable[[], object], numel: int) -> float:
        """Return seconds a job when a small matrix is measured by every thread at once, as the scan does."""
        if self.device.type != "cpu" or self.threads == 1 or numel > 1 << 22:
            return self.best(job)
        torch.set_num_threads(1)
        taken = self.best(lambda: [f.result() for f in [self.pool.submit(job) for _ in range(self.threads)]])
        torch.set_num_threads(self.threads)
        return taken / self.threads


def one(pair: Pair, watch: Stopwatch, skip: list[str], record: "Record") -> None:
    """Let every line measure one matrix."""
    name, read_base, read_new = pair
    base, new = read_base().to(watch.device), read_new().to(watch.device)
    tracked, exact, null = Plan(null="none"), Plan(method="exact", null="none"), Plan()
    k, r = tracked.ranks(min(base.shape))
    plain: dict[str, float] = {}
    if "plain" not in skip:
        taken, kept = watch.once(lambda: PlainBase.of(base, r, 0.1))
        record.once["plain"] += taken
        taken, plain = watch.once(lambda: plain_drift(kept, base, new, k, r, 0.1))
        record.seconds["plain, cached"] += taken
    taken, basis = watch.once(lambda: Basis(base, tracked).warm())
    record.once["driftlab"] += taken
    truth = 0.0
    if "exact" not in skip:
        basis.plan = exact
        taken, drift = watch.once(lambda: measure(basis, new))
        record.seconds["exact"] += taken
        truth = drift.values["nss"]
    basis.plan = tracked
    drift = measure(basis, new)
    record.methods[drift.method] += 1
    record.seconds["tracked"] += watch.side_by_side(lambda: measure(basis, new), new.numel())
    basis.plan = null
    record.seconds["tracked+null"] += watch.side_by_side(lambda: measure(basis, new, name), new.numel())
    D = basis.frame.turn(difference(basis.stored, new))
    record.seconds["floor"] += watch.best(lambda: (read_base(), read_new())) / 2
    record.seconds["floor"] += watch.best(lambda: Update(basis.frame, D))
    if truth:
        record.errors["tracked"].append(abs(drift.values["nss"] / truth - 1))
        record.errors["shown"].append(drift.errors["nss"] / truth)
        if plain:
            record.errors["plain, cached"].append(abs(plain["nss"] / truth - 1))


class Record:
    """Sums over matrices."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.once: dict[str, float] = defaultdict(float)
        self.errors: dict[str, list[float]] = defaultdict(list)
        self.methods: dict[str, int] = defaultdict(int)

    def report(self) -> str:
        """One line a way to measure, with its ratios."""
        seconds = dict(self.seconds)
        if "plain, cached" in seconds:
            seconds["plain"] = seconds["plain, cached"] + self.once["plain"]
            self.errors["plain"] = self.errors["plain, cached"]
        reference = seconds.get("plain", seconds["floor"])
        lines = [f"{'line':14s} {'seconds':>9s} {'plain/line':>11s} {'line/floor':>11s}   nss error, median and worst"]
        for line in ("plain", "plain, cached", "exact", "tracked", "tracked+null", "floor"):
            if line in seconds:
                text = spread(self.errors.get(line, []))
                taken = seconds[line]
                ratios = f"{reference / taken:11.1f} {taken / seconds['floor']:11.2f}"
                lines.append(f"{line:14s} {taken:9.2f} {ratios}   {text}")
        lines.append(f"shown error of nss: {spread(self.errors['shown'])}; methods {dict(self.methods)}")
        lines.append(f"base, once: plain {self.once['plain']:.2f} s, driftlab {self.once['driftlab']:.2f} s")
        return "\n".join(lines)


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.1e}  {ordered[-1]:.1e}" if ordered else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--new", type=Path)
    parser.add_argument("--shapes", choices=LAYERS, default="smollm2-135m")
    parser.add_argument("--every", type=int, default=1, help="take every n-th matrix of the real model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=3, help="take the best of n for tracked lines and floor")
    parser.add_argument("--skip", nargs="*", default=[], help="lines to leave out: plain exact")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    real = options.base is not None
    pairs = real_pairs(options.base, options.new, options.every) if real else random_pairs(LAYERS[options.shapes])
    watch = Stopwatch(torch.device(options.device), options.threads, options.repeat)
    record = Record()
    count = 0
    with exact_math():
        for pair in pairs:
            one(pair, watch, options.skip, record)
            count += 1
    where = f"{options.device}, {options.threads} threads, torch {torch.__version__}, {platform.platform()}"
    print(f"{count} matrices, {where}")
    print(record.report())


if __name__ == "__main__":
    main()
