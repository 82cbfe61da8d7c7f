"""Distances between domains beside alibi-detect's MMDDrift, memory, and calibration.

    python benchmarks/mmd.py speed [--domains 11 --rows 2000 --width 2560 --permutations 1999]
    python benchmarks/mmd.py memory [--rows 25000]
    python benchmarks/mmd.py calibration [--repeats 1000]

``speed`` needs alibi-detect for the other side of the ratio. Its release pins old versions of its dependencies; its
MMD detector itself needs none of them, so the package may be unpacked without them::

    pip install --no-deps --target alibi alibi-detect
    PYTHONPATH=alibi python benchmarks/mmd.py speed

Its detector runs unchanged (class MMDDriftTorch, CPU, same threads, same rows, same bandwidth). One pair is timed at
100 and at 400 permutations; the cost of a pair is linear in the permutations, so the rest is computed from that and
marked as computed.
"""

import argparse
import importlib
import importlib.util
import os
import resource
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch

from driftlab.domains.bandwidth import median_gamma
from driftlab.domains.comparisons import compare_distances
from driftlab.domains.mmd import measure_distances


def make_domains(count, rows, width, seed=0):
    """Make unit rows around different centres, as embeddings are."""
    rng = np.random.default_rng(seed)
    made = {}
    for i in range(count):
        x = rng.standard_normal((rows, width), dtype=np.float32) + 0.15 * rng.standard_normal(width, dtype=np.float32)
        made[f"domain{i}"] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return made


class Clock:
    """Wall and CPU seconds of a block; CPU seconds hold on a busy machine too."""

    def __enter__(self):
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error):
        self.wall, self.cpu = time.perf_counter() - self._start[0], time.process_time() - self._start[1]

    def __str__(self):
        return f"{self.wall:.1f} s ({self.cpu:.1f} CPU-s)"


def alibi_detector():
    """Return alibi-detect's own MMDDriftTorch, past the package's __init__, which imports everything it has."""
    spec = importlib.util.find_spec("alibi_detect")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    for name in ("alibi_detect", "alibi_detect.cd", "alibi_detect.cd.pytorch", "alibi_detect.utils"):
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    return importlib.import_module("alibi_detect.cd.pytorch.mmd").MMDDriftTorch


def time_alibi(detector, x, y, gamma, permutations):
    sigma = np.array([(2 * gamma) ** -0.5], dtype=np.float32)
    with Clock() as clock:
        p_value, mmd2, _ = detector(x, sigma=sigma, n_permutations=permutations, device="cpu").score(y)
    print(f"alibi-detect: one pair, {permutations} permutations: {clock}, p = {p_value}, MMD2 {mmd2:.7f}", flush=True)
    return clock


def speed(options):
    vectors = make_domains(options.domains, options.rows, options.width)
    pairs = options.domains * (options.domains - 1) // 2
    shape = f"{options.domains} domains x {options.rows} rows x {options.width}, {options.permutations} permutations"
    print(f"{shape}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}", flush=True)
    with Clock() as ours:
        with Clock() as bandwidth:
            gamma = median_gamma(vectors)
        result = measure_distances(vectors, gamma, permutations=options.permutations)
        differences = compare_distances(result.names, result.matrix(), result.left_out)
    print(f"driftlab: {pairs} pairs with intervals and p, {len(differences)} difference tests: {ours}")
    print(f"          of it the bandwidth: {bandwidth}; peak memory {peak():.0f} MB")
    smallest = min(pair.p_value for pair in result.pairs)
    print(f"          smallest p {smallest:.4f}; first pair MMD2 {result.pairs[0].mmd2_u:.7f}", flush=True)
    detector = alibi_detector()
    if detector is None:
        print("alibi-detect is not installed: no ratio (see the head of this file)")
        return
    few, many = (time_alibi(detector, vectors["domain0"], vectors["domain1"], gamma, b) for b in (100, 400))
    for kind in ("wall", "cpu"):
        rate = (getattr(many, kind) - getattr(few, kind)) / 300
        total = pairs * (getattr(few, kind) + (options.permutations - 100) * rate)
        print(
            f"alibi-detect, computed from these two, {kind}: {1000 * rate:.0f} ms a permutation, {pairs} pairs at "
            f"{options.permutations}: {total / 3600:.2f} h without intervals; ratio {total / getattr(ours, kind):.0f}x"
        )


def memory(options):
    vectors = make_domains(2, options.rows, 384)
    before = peak()
    with Clock() as clock:
        gamma = median_gamma(vectors)
        pair = measure_distances(vectors, gamma, permutations=options.permutations).pairs[0]
    total = 2 * options.rows
    print(
        f"{total} rows x 384, {options.permutations} permutations: MMD2 {pair.mmd2_u:.6f}, "
        f"{clock}, {peak() - before:.0f} MB above the {before:.0f} MB of data and "
        f"libraries; the kernel matrix alone would take {total**2 * 4 / 1e6:.0f} MB"
    )


def calibration(options):
    rng = np.random.default_rng(0)
    gamma, width = 0.25, 3
    scale = 1 + 4 * gamma
    print(f"95 % intervals, {options.repeats} repeats each, normal samples in {width} dimensions")
    print("   n    m  shift  covered")
    for n, m in ((10, 15), (30, 20), (60, 60), (150, 100)):
        for shift in (0.0, 0.3, 0.7, 1.5):
            truth = 2 * scale ** (-width / 2) * (1 - np.exp(-gamma * shift**2 / scale))
            inside = 0
            for _ in range(options.repeats):
                x, y = rng.normal(size=(n, width)), rng.normal(size=(m, width))
                y[:, 0] += shift
                pair = measure_distances({"x": x, "y": y}, gamma, permutations=0, precision="float64").pairs[0]
                inside += pair.ci_low <= truth <= pair.ci_high
            print(f"{n:4} {m:4}  {shift:5.1f}  {inside / options.repeats:7.3f}", flush=True)
    p_values = []
    for seed in range(options.repeats):
        pool = rng.normal(size=(50, width))
        halves = {"x": pool[:30], "y": pool[30:]}
        result = measure_distances(halves, gamma, permutations=199, seed=seed, precision="float64")
        p_values.append(result.pairs[0].p_value)
    levels = ", ".join(f"{level:g}: {np.mean(np.array(p_values) <= level):.3f}" for level in (0.01, 0.05, 0.1, 0.5))
    print(f"share of p at or below a level when both samples are alike: {levels}")


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "memory", "calibration"])
    parser.add_argument("--domains", type=int, default=11)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--width", type=int, default=2560)
    parser.add_argument("--permutations", type=int, default=1999)
    parser.add_argument("--repeats", type=int, default=1000)
    options = parser.parse_args()
    options.rows = options.rows or {"speed": 2000, "memory": 25_000}.get(options.part, 0)
    {"speed": speed, "memory": memory, "calibration": calibration}[options.part](options)


if __name__ == "__main__":
    main()
