"""What a float32 loop reads on the matrices of a results folder, stored beside driftlab's numbers.

    python benchmarks/float32.py RUN... --base PATH -o OUT --every 7

OUT is a folder that ``driftlab svd`` has filled from the same runs. Every n-th matrix is measured by the plain loop
(``plain.py``) and the table ``float32`` is added, with two floors: what the loop reads for a base whose rows are merely
permuted, which moves no singular value, and the angle it reads between a subspace and itself. The figure
``float32_view`` shows both; ``driftlab figures OUT`` draws it.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from plain import PlainBase, plain_drift
from torch import Tensor

from driftlab.checkpoints import CheckpointSequence
from driftlab.checkpoints.tracks import Track
from driftlab.results import ResultsDir
from driftlab.spectral import Plan

FRACTION = 0.1


def floors(base: PlainBase, k: int) -> dict[str, float]:
    """Return what the loop reads where nothing has moved."""
    order = torch.randperm(base.W.shape[0], generator=torch.Generator().manual_seed(0))
    moved = torch.linalg.svdvals(base.W[order])
    cosines = torch.linalg.svdvals(base.U[:, :k].T @ base.U[:, :k]).clamp(-1, 1)
    return {
        "nss_floor": float((moved - base.S).norm() / base.S.norm()),
        "max_angle_left_deg_floor": float(torch.rad2deg(torch.arccos(cosines.min()))),
    }


def rows(track: Track) -> Iterator[dict[str, Any]]:
    """Measure one matrix through all checkpoints."""
    assert track.base is not None
    stored: Tensor = track.base.read()
    k, r = Plan().ranks(min(stored.shape))
    base = PlainBase.of(stored, r, FRACTION)
    floor = floors(base, k)
    for member in track.members:
        if member.tensor is not None and member.status == "ok":
            found = plain_drift(base, stored, member.tensor.read(), k, r, FRACTION)
            yield {
                "run": member.run,
                "label": member.checkpoint.label,
                "order": member.checkpoint.order,
                "matrix": track.name,
                "nss": found["nss"],
                "max_angle_left_deg": found["max_angle_left_deg"],
                **floor,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--base", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="take every n-th matrix")
    options = parser.parse_args()
    sequence = CheckpointSequence.open(options.runs, options.base)
    tracks = [track for track in sequence.tracks() if not track.left_out][:: options.every]
    config = {"every": options.every, "fraction": FRACTION}
    results = ResultsDir.create(options.out, command="float32", config=config, argv=sys.argv[1:], resume=True)
    results.write_table("float32", pd.DataFrame([row for track in tracks for row in rows(track)]))
    results.finish()
    print(f"{len(tracks)} matrices; table float32 in {options.out}")


if __name__ == "__main__":
    main()
