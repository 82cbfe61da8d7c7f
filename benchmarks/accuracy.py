"""How far tracked numbers are off, against float64 decompositions, and whether their error estimates say so.

    python benchmarks/accuracy.py                      synthetic bases, updates and shapes
    python benchmarks/accuracy.py --model FOLDER       slices of a real model's matrices beside them
    python benchmarks/accuracy.py --small              what the tests run

For each measure it prints how many values were kept (their estimate within the tolerance), in how many of those the
true error is below the estimate, the median of estimate over true error, and the largest true error kept.
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from driftlab.devices import exact_math
from driftlab.spectral import Basis, Plan
from driftlab.spectral.drift import within
from driftlab.spectral.exact import measure_exact
from driftlab.spectral.measures import ESTIMATED
from driftlab.spectral.tracking import measure_tracked

SHAPES = ((160, 240), (320, 192), (256, 256), (384, 576))
SIZES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
TRUTH = {"mask_overlap": 0.0, "rel_spectral": 1e-12, "nss": 1e-11}
"""Below this a true relative error is rounding of the reference itself."""


@dataclass(frozen=True)
class Case:
    """One measure of one update: true and estimated relative error, and whether the value would be kept."""

    spectrum: str
    update: str
    size: float
    measure: str
    truth: float
    estimate: float
    kept: bool


def spectra(d: int) -> dict[str, Tensor]:
    """Singular values by name, descending."""
    index = torch.arange(d, dtype=torch.float64)
    half = torch.where(index < d // 2, 1.0 / (1 + index / 10), torch.zeros_like(index))
    return {
        "gaussian": torch.linspace(2.0, 0.05, d, dtype=torch.float64),
        "power law": (1 + index) ** -0.7,
        "steep": torch.exp(-index * 9.0 / d),
        "flat": torch.ones(d, dtype=torch.float64),
        "repeated": (1.0 / (1 + torch.div(index, 8, rounding_mode="floor"))).sqrt(),
        "rank-deficient": half,
        "condition 1e8": torch.logspace(0, -8, d, dtype=torch.float64),
    }


def updates(W: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Make updates by kind, of any norm."""
    m, n = W.shape

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    single = torch.zeros_like(W)
    single[m // 3, n // 2] = 1.0
    return {
        "dense": normal(m, n),
        "low rank": normal(m, 4) @ normal(4, n),
        "signs": torch.sign(normal(m, n)),
        "single entry": single,
        "scaling": W + 0.1 * W.norm() / math.sqrt(m * n) * normal(m, n),
    }


def synthetic(shapes: tuple[tuple[int, int], ...], seed: int) -> Iterator[tuple[str, Tensor]]:
    """Random bases with given spectra."""
    generator = torch.Generator().manual_seed(seed)
    for m, n in shapes:
        d = min(m, n)
        for name, sigma in spectra(d).items():
            left, _ = torch.linalg.qr(torch.randn(m, d, generator=generator, dtype=torch.float64))
            right, _ = torch.linalg.qr(torch.randn(n, d, generator=generator, dtype=torch.float64))
            yield name, (left * sigma) @ right.mT


def real(folder: Path, layers: tuple[int, ...] = (0, 5, 20)) -> Iterator[tuple[str, Tensor]]:
    """Matrices of a model's layers."""
    from driftlab.checkpoints.weights import open_weights

    for name, info in open_weights(folder).tensors.items():
        if any(f"layers.{layer}." in name for layer in layers) and len(info.shape) == 2:
            yield "real", info.read().double()


def sweep(bases: Iterator[tuple[str, Tensor]], sizes: tuple[float, ...] = SIZES, seed: int = 1) -> Iterator[Case]:
    """Measure every update of every size on every base, tracked and exact."""
    plan = Plan(null="none")
    generator = torch.Generator().manual_seed(seed)
    for spectrum, W in bases:
        basis = Basis(W, plan)
        for (kind, raw), size in itertools.product(updates(W, generator).items(), sizes):
            D = raw * (size * W.norm() / raw.norm())
            with exact_math():
                exact, _ = measure_exact(basis, W + D)
                tracked, errors = measure_tracked(basis, D)
            for name in ESTIMATED:
                scale = abs(exact.get(name, math.nan))
                if name in tracked and scale > 0 and math.isfinite(errors[name]):
                    truth = max(abs(tracked[name] - exact[name]) / scale, TRUTH.get(name, 1e-9))
                    good = within(name, tracked, errors[name], plan.tolerance)
                    yield Case(spectrum, kind, size, name, truth, errors[name] / scale, good)


def report(cases: list[Case]) -> str:
    """One line a measure."""
    lines = ["measure                  kept    covered  median ratio  largest true error kept"]
    for name in ESTIMATED:
        mine = [case for case in cases if case.measure == name]
        kept = [case for case in mine if case.kept]
        if not kept:
            lines.append(f"{name:24s}    0 of {len(mine)}")
            continue
        covered = sum(case.truth <= case.estimate for case in kept) / len(kept)
        ratios = sorted(case.estimate / case.truth for case in kept if case.truth > 0)
        middle = ratios[len(ratios) // 2] if ratios else math.nan
        worst = max(case.truth for case in kept)
        share = len(kept) / len(mine)
        lines.append(f"{name:24s} {share:6.1%}  {covered:8.2%}  {middle:12.1f}  {worst:.1e}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="list the cases whose estimate was too small")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shapes = SHAPES[:2] if options.small else SHAPES
    cases: list[Case] = []
    for seed in range(options.seeds):
        cases += sweep(synthetic(shapes, seed), seed=seed + 1)
    if options.model:
        cases += sweep(real(options.model))
    print(report(cases))
    groups = {(case.spectrum, case.update) for case in cases}
    print(f"\n{len(groups)} kinds of base and update, {len(cases)} values; kept share of nss by spectrum and size:")
    for spectrum in dict.fromkeys(case.spectrum for case in cases):
        row = []
        for size in SIZES:
            mine = [c for c in cases if (c.spectrum, c.size, c.measure) == (spectrum, size, "nss")]
            row.append(f"{size:.0e}: {sum(c.kept for c in mine) / len(mine):4.0%}" if mine else f"{size:.0e}:    -")
        print(f"  {spectrum:16s} " + "  ".join(row))
    if options.misses:
        for c in cases:
            if c.kept and c.truth > c.estimate:
                print(f"{c.spectrum:15s} {c.update:13s} {c.size:.0e} {c.measure:24s} {c.truth:.1e} > {c.estimate:.1e}")


if __name__ == "__main__":
    main()
