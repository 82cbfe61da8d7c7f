"""Reading needs memory for what is asked for, not for the model; no matrix of the long side squared is made."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

MEASURE = """
import resource, sys
from driftlab.checkpoints import CheckpointSequence
from driftlab.results import ResultsDir
from driftlab.scan import TABLES, describe, scan
from driftlab.spectral import Plan
import torch
torch.linalg.svd(torch.randn(64, 32, dtype=torch.float64))
base, new, out = sys.argv[1:4]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sequence = CheckpointSequence.open([new], base)
plan = Plan(null="none", measures=("rel_frobenius", "nss", "update_density", "max_angle_right_deg"))
results = ResultsDir.create(out, command="svd", config=describe(sequence, plan), tables=TABLES)
outcome = scan(sequence, plan, results, device="cpu", include=sys.argv[4:] or None)
print(outcome.ok, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def measured(*arguments):
    """Return rows that are ok and the growth of the peak in MB, in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    ok, kilobytes = found.stdout.split()
    return int(ok), int(kilobytes) / 1024


def shards(folder, count, seed, save, stem, suffix):
    folder.mkdir()
    placed = {}
    for i in range(count):
        name = f"{stem}-{i + 1:05d}-of-{count:05d}{suffix}"
        generator = torch.Generator().manual_seed(1000 * seed + i)
        weight = torch.randn(1024, 2048, generator=generator).bfloat16()
        save({f"model.layers.{i}.mlp.up_proj.weight": weight}, folder / name)
        placed[f"model.layers.{i}.mlp.up_proj.weight"] = name
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "stem", "suffix"),
    [(save_file, "model", ".safetensors"), (torch.save, "pytorch_model", ".bin")],
    ids=["safetensors", "torch"],
)
def test_sixty_shards_are_read_one_tensor_at_a_time(tmp_path, save, stem, suffix):
    base, new = (shards(tmp_path / name, 60, i, save, stem, suffix) for i, name in enumerate(("base", "new")))
    ok, grown = measured(base, new, tmp_path / "out", r"layers\.[0-4]\.")
    assert ok == 5
    matrix, model = 4.0, 240.0  # MB in bf16
    assert grown < 300 + 40 * matrix < 2 * model


@pytest.mark.slow
@pytest.mark.parametrize("include", [(), ("embed_tokens",)], ids=["left out", "measured"])
def test_two_million_rows(tmp_path, include):
    """An embedding of 2,000,000 x 16: its square would be 16 TB, its int32 offsets overflow nothing."""
    for i, name in enumerate(("base", "new")):
        (tmp_path / name).mkdir()
        generator = torch.Generator().manual_seed(i)
        big = torch.randn(2_000_000, 16, generator=generator).bfloat16()
        small = torch.randn(6, 4, generator=generator).bfloat16()
        tensors = {"model.embed_tokens.weight": big, "model.layers.0.mlp.up_proj.weight": small}
        save_file(tensors, tmp_path / name / "model.safetensors")
    ok, grown = measured(tmp_path / "base", tmp_path / "new", tmp_path / "out", *include)
    assert ok == 1
    copies = 24 if include else 6  # of the matrix in float64: 256 MB
    assert grown < 300 + copies * 256
