"""Peak memory of a scan beside what it may use: basis + two matrices + 300 MB.

    python benchmarks/scan.py --rows 2048 --cols 6144

Writes a synthetic sequence (a base and checkpoints of random bf16 matrices) to a temporary folder and scans it in
a process of its own; the peak counts from after the imports and a warm-up scan of a tiny sequence. The basis is
U, sigma, V and the base itself in float64, a matrix is one in float64.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

MB = 1e6
SLACK = 300.0  # megabytes


def write_sequence(folder: Path, rows: int, cols: int, matrices: int, checkpoints: int) -> list[str]:
    """Write ``checkpoints + 1`` model folders and return their paths, the base first."""
    paths = []
    for step in range(checkpoints + 1):
        target = folder / f"checkpoint-{step}"
        target.mkdir(parents=True)
        tensors = {}
        for i in range(matrices):
            base = torch.randn(rows, cols, generator=torch.Generator().manual_seed(i))
            move = torch.randn(rows, cols, generator=torch.Generator().manual_seed(1000 * step + i))
            tensors[f"model.layers.{i}.up_proj.weight"] = (base + (1e-3 * move if step else 0.0)).bfloat16()
        save_file(tensors, target / "model.safetensors")
        paths.append(str(target))
    return paths


def allowed(rows: int, cols: int) -> float:
    """Return megabytes a scan may use above its start."""
    small = min(rows, cols)
    basis = rows * cols + small * (rows + cols) + small
    return 8 * (basis + 2 * rows * cols) / MB + SLACK


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def scan_here(paths: list[str], tiny: list[str], method: str, null: str, out: str) -> dict[str, float]:
    """Scan in this process and return its peak before and after, in megabytes."""
    from driftlab.checkpoints import CheckpointSequence
    from driftlab.results import ResultsDir
    from driftlab.scan import scan
    from driftlab.spectral import Plan

    plan, found = Plan(method=method, null=null), {}
    for name, given in (("start", tiny), ("end", paths)):
        sequence = CheckpointSequence.open(given)
        scan(sequence, plan, ResultsDir.create(f"{out}/{name}", command="svd", config={}), device="cpu")
        found[name] = peak()
    return found


def memory(rows: int, cols: int, matrices: int, checkpoints: int, method: str, null: str) -> dict[str, float]:
    """Return peak above start, what is allowed, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_sequence(Path(folder) / "large", rows, cols, matrices, checkpoints)
        tiny = write_sequence(Path(folder) / "tiny", 8, 12, 2, 1)
        arguments = json.dumps([paths, tiny, method, null, f"{folder}/out"])
        command = [sys.executable, __file__, "--scan-here", arguments]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    used, limit = found["end"] - found["start"], allowed(rows, cols)
    return {"used_mb": round(used, 1), "allowed_mb": round(limit, 1), "ratio": round(used / limit, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--cols", type=int, default=3072)
    parser.add_argument("--matrices", type=int, default=3)
    parser.add_argument("--checkpoints", type=int, default=3)
    parser.add_argument("--scan-here", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scan_here:
        print(json.dumps(scan_here(*json.loads(options.scan_here))))
        return
    for method in ("exact", "auto"):
        for null in ("none", "sign"):
            sizes = (options.rows, options.cols, options.matrices, options.checkpoints)
            print(f"{method:6} null {null:5}", json.dumps(memory(*sizes, method, null)), flush=True)


if __name__ == "__main__":
    main()
