"""Hub names are fetched through the hub's own client, only where asked for; here from a cache, without a network."""

import json

import pytest
import torch
from safetensors.torch import save_file

from driftlab.checkpoints import CheckpointSequence
from driftlab.checkpoints.arguments import find_runs
from driftlab.errors import CheckpointError, UsageError


@pytest.fixture
def cache(make, monkeypatch):
    """A cache as huggingface_hub lays it out: refs, snapshots, blobs that the snapshots link to."""
    from huggingface_hub import constants

    root = make.root / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(make.root)

    def put(repo, revision, step, suffix=".safetensors"):
        folder = root / f"models--{repo.replace('/', '--')}"
        commit = f"{step:040x}"
        for name in ("refs", "blobs", f"snapshots/{commit}"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
        name, blob = ("model" if suffix == ".safetensors" else "pytorch_model") + suffix, folder / "blobs" / f"{step:x}"
        save_file(make.tensors(step), blob) if suffix == ".safetensors" else torch.save(make.tensors(step), blob)
        (folder / "snapshots" / commit / name).symlink_to(f"../../blobs/{step:x}")
        (folder / "snapshots" / commit / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))

    return put


def test_revisions_are_a_sequence(cache):
    for step in (0, 1000, 512):
        cache("org/pythia-70m", f"step{step}", step)
    sequence = CheckpointSequence.open(["hf:org/pythia-70m@step512,step1000"], "hf:org/pythia-70m@step0")
    assert [(run, c.label, c.step, c.error) for run, c in sequence.checkpoints] == [
        ("pythia-70m", "train@512", 512, ""),
        ("pythia-70m", "train@1000", 1000, ""),
    ]


def test_revisions_one_by_one_and_a_name(cache):
    for step in (0, 1, 2):
        cache("org/m", f"step{step}", step)
    (run,) = find_runs(["a=hf:org/m@step2", "a=hf:org/m@step1"])
    assert (run.name, [c.label for c in run.checkpoints]) == ("a", ["train@1", "train@2"])


def test_main_is_the_usual_revision(cache):
    cache("gpt2", "main", 3)
    (run,) = find_runs(["hf:gpt2"])
    assert (run.name, [c.label for c in run.checkpoints]) == ("gpt2", ["main"])


def test_torch_weights_where_there_is_nothing_else(cache):
    cache("org/old", "step0", 0)
    cache("org/old", "step5", 5, suffix=".bin")
    sequence = CheckpointSequence.open(["hf:org/old@step5"], "hf:org/old@step0")
    assert [c.error for _, c in sequence.checkpoints] == [""]


def test_a_base_is_one_revision(cache):
    for step in (0, 1):
        cache("org/m", f"step{step}", step)
    with pytest.raises(UsageError, match=r"--base hf:org/m@step0,step1: expected one revision, found 2"):
        CheckpointSequence.open(["hf:org/m@step1"], "hf:org/m@step0,step1")


def test_what_is_not_there_is_said_with_its_revision(cache):
    cache("org/m", "step1", 1)
    with pytest.raises(CheckpointError, match=r"hf:org/m@step7: revision 'step7' cannot be fetched and is not in the"):
        find_runs(["hf:org/m@step7"])
    with pytest.raises(CheckpointError, match=r"Check name, revision and network"):
        find_runs(["hf:no/such"])


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c", "hf:org/m@", "hf:org/m@a b", "hf:../x"])
def test_a_name_of_another_form(cache, name):
    with pytest.raises((UsageError, CheckpointError), match=r"hf:"):
        find_runs([name])


def test_a_local_path_is_never_taken_for_a_hub_name(make, cache, monkeypatch):
    import huggingface_hub

    def never(*args, **kwargs):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", never)
    make.folder("hf:org")
    (run,) = find_runs(["hf:org"])
    assert [c.label for c in run.checkpoints] == ["hf:org"]
    for name in ("org/m", "EleutherAI/pythia-70m"):
        with pytest.raises(CheckpointError, match="expected a run folder or checkpoint, found nothing"):
            find_runs([name])
