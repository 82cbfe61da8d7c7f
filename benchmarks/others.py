"""Published tools beside driftlab, on the same matrices of a base and a checkpoint in one run.

    pip install --no-deps weightwatcher powerlaw
    python benchmarks/others.py --base FOLDER --new FOLDER --every 10

What each line computes, for one added checkpoint; no two tools compute the same:

driftlab           22 drift measures with errors, base decomposed before (``driftlab, base`` is that, paid once)
driftlab, null     the same with the sign null
SciPy              ``scipy.linalg.svd`` of both in float32, ``subspace_angles`` of both sides: nss and two angles
WeightWatcher      ``analyze()`` of the checkpoint alone: singular values, power-law fits, norms, ranks; no comparison
WeightWatcher, Δ   ``distances()`` of base and checkpoint: Frobenius distance of each layer
"""

import argparse
import io
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import torch
from scipy.linalg import subspace_angles, svd
from torch import Tensor, nn

from driftlab.checkpoints.weights import open_weights
from driftlab.devices import exact_math
from driftlab.spectral import Basis, Plan, measure

Matrices = dict[str, Tensor]


def matrices(folder: Path, every: int) -> Matrices:
    """Read every n-th matrix of a model but its embeddings."""
    tensors = open_weights(folder).tensors
    names = [n for n, t in tensors.items() if len(t.shape) == 2 and "embed" not in n and "lm_head" not in n]
    return {name: tensors[name].read() for name in names[::every]}


def model(weights: Matrices) -> nn.Module:
    """Put matrices into the layers that WeightWatcher looks for."""
    layers = []
    for W in weights.values():
        layer = nn.Linear(W.shape[1], W.shape[0], bias=False)
        layer.weight = nn.Parameter(W.float(), requires_grad=False)
        layers.append(layer)
    return nn.Sequential(*layers)


def with_scipy(base: Tensor, new: Tensor, k: int) -> tuple[float, float, float]:
    """Return nss and the largest angle of either side as one writes them with SciPy."""
    (U0, S0, V0), (U1, S1, V1) = (svd(W.float().numpy(), full_matrices=False) for W in (base, new))
    shift = float(((S1 - S0) ** 2).sum() / (S0**2).sum()) ** 0.5
    return shift, float(subspace_angles(U0[:, :k], U1[:, :k]).max()), float(subspace_angles(V0[:k].T, V1[:k].T).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    base, new = matrices(options.base, options.every), matrices(options.new, options.every)
    seconds: dict[str, float] = defaultdict(float)

    def timed(line: str, job: Callable[[], object]) -> object:
        started = time.process_time()
        result = job()
        seconds[line] += time.process_time() - started
        return result

    plan, null = Plan(null="none"), Plan()
    with exact_math():
        for name, W in base.items():
            basis = timed("driftlab, base", lambda W=W: Basis(W, plan).warm())
            assert isinstance(basis, Basis)
            timed("driftlab", lambda basis=basis, name=name: measure(basis, new[name]))
            basis.plan = null
            timed("driftlab, null", lambda basis=basis, name=name: measure(basis, new[name], name))
            timed("SciPy", lambda W=W, k=basis.k, name=name: with_scipy(W, new[name], k))
    try:
        import weightwatcher
    except ImportError:
        print("WeightWatcher is not installed: its lines are left out")
    else:
        logging.disable(logging.WARNING)
        with redirect_stdout(io.StringIO()):
            before, after = model(base), model(new)
            watcher = weightwatcher.WeightWatcher(model=after)
            timed("WeightWatcher", watcher.analyze)
            timed("WeightWatcher, Δ", lambda: watcher.distances(before, after))
        print(f"WeightWatcher {weightwatcher.__version__}")
    for line, taken in seconds.items():
        print(f"{line:18s} {taken:8.2f} CPU-s {taken / seconds['driftlab']:8.1f} times driftlab")
    print(f"{len(base)} matrices, 1 thread, torch {torch.__version__}")


if __name__ == "__main__":
    main()
