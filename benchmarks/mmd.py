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


def measure(vectors, permutations):
    """Everything of ``driftlab mmd`` after the embeddings: bandwidth, distances, intervals, p, differences."""
    start = time.perf_counter()
    gamma = median_gamma(vectors)
    middle = time.perf_counter()
    result = measure_distances(vectors, gamma, permutations=permutations)
    differences = compare_distances(result.names, result.matrix(), result.left_out)
    end = time.perf_counter()
    return gamma, result, differences, middle - start, end - middle


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
    start = time.perf_counter()
    p_value, mmd2, _ = detector(x, sigma=sigma, n_permutations=permutations, device="cpu").score(y)
    return time.perf_counter() - start, p_value, mmd2


def speed(options):
    vectors = make_domains(options.domains, options.rows, options.width)
    pairs = options.domains * (options.domains - 1) // 2
    print(
        f"{options.domains} domains x {options.rows} rows x {options.width}, {options.permutations} permutations, "
        f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    gamma, result, differences, for_gamma, for_rest = measure(vectors, options.permutations)
    ours = for_gamma + for_rest
    print(
        f"driftlab: {pairs} pairs in {ours:.1f} s (bandwidth {for_gamma:.1f} s, distances with intervals, p and "
        f"{len(differences)} difference tests {for_rest:.1f} s); smallest p "
        f"{min(pair.p_value for pair in result.pairs):.4f}; peak memory {peak():.0f} MB",
        flush=True,
    )
    detector = alibi_detector()
    if detector is None:
        print("alibi-detect is not installed: no ratio (see the head of this file)")
        return
    x, y = vectors["domain0"], vectors["domain1"]
    few, p_value, mmd2 = time_alibi(detector, x, y, gamma, 100)
    print(
        f"alibi-detect: one pair, 100 permutations: {few:.1f} s, p = {p_value}, MMD2 {mmd2:.7f} "
        f"(driftlab {result.pairs[0].mmd2_u:.7f})",
        flush=True,
    )
    many, p_value, _ = time_alibi(detector, x, y, gamma, 400)
    rate = (many - few) / 300
    pair = few + (options.permutations - 100) * rate
    print(f"alibi-detect: one pair, 400 permutations: {many:.1f} s, p = {p_value}; {1000 * rate:.0f} ms a permutation")
    print(
        f"alibi-detect: {pairs} pairs at {options.permutations} permutations: {pairs * pair / 3600:.2f} h (computed "
        f"from these two, no intervals)"
    )
    print(f"ratio: {pairs * pair / ours:.0f}x")


def memory(options):
    vectors = make_domains(2, options.rows, 384)
    before = peak()
    start = time.perf_counter()
    gamma = median_gamma(vectors)
    pair = measure_distances(vectors, gamma, permutations=options.permutations).pairs[0]
    total = 2 * options.rows
    print(
        f"{total} rows x 384, {options.permutations} permutations: MMD2 {pair.mmd2_u:.6f}, "
        f"{time.perf_counter() - start:.0f} s, {peak() - before:.0f} MB above the {before:.0f} MB of data and "
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
