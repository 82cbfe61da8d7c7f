"""Checkpoints damaged at random are read right or refused by name; what once was not so stays here by its kind."""

import importlib.util
import json
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from driftlab.checkpoints import CheckpointSequence
from driftlab.checkpoints.weights import open_weights
from driftlab.errors import CheckpointError

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_checkpoints.py"
_spec = importlib.util.spec_from_file_location("fuzz_checkpoints", SCRIPT)
fuzz = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz)


def refused(path):
    with pytest.raises(CheckpointError) as caught:
        open_weights(path)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_damage_is_read_right_or_refused_by_name(seed):
    what, why = fuzz.run(seed)
    assert not what.startswith("FAILED"), f"case {seed}: {why}"


@pytest.mark.parametrize("way", fuzz.FORMATS, ids=lambda way: way.__name__)
def test_every_format_is_read_before_it_is_damaged(tmp_path, way):
    base, folder = tmp_path / "base", tmp_path / "case"
    base.mkdir()
    folder.mkdir()
    save_file(fuzz.tensors(0), base / "model.safetensors")
    way(folder)
    assert fuzz.check(tmp_path, folder).startswith("read")


def test_the_fuzzer_sees_a_pickle_that_runs(tmp_path):
    (tmp_path / "base").mkdir()
    save_file(fuzz.tensors(0), tmp_path / "base" / "model.safetensors")
    folder = tmp_path / "case"
    folder.mkdir()
    fuzz.plain(folder)
    (tmp_path / "UNPICKLED").touch()
    with pytest.raises(AssertionError, match="a pickle was run"):
        fuzz.check(tmp_path, folder)


# -- kinds that it found --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "model.safetensors.index.json", "driftlab.json"])
@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_a_pipe_or_a_device_is_never_waited_for(make, name, target):
    folder = make.sharded("m") if "index" in name else make.folder("m")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name) if target == "pipe" else (folder / name).symlink_to(target)
    if "safetensors" in name:
        assert f"{name}: expected a file, found a pipe or device" in refused(folder)
    else:  # nothing that the weights need: as if it were not there
        ((_, checkpoint),) = CheckpointSequence.open([str(folder)], make.folder("base")).checkpoints
        assert (checkpoint.error, checkpoint.label) == ("", "m")
        assert name != "config.json" or open_weights(folder).config == {}


def test_a_torch_file_that_is_a_pipe(make):
    os.mkfifo(make.root / "policy.pt")
    assert "expected a file, found a pipe or device" in refused(make.root / "policy.pt")


def test_a_link_to_itself(make):
    folder = make.folder("m")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    assert "model.safetensors: cannot be read (Too many levels of symbolic links)" in refused(folder)


def test_a_world_of_no_ranks(make):
    (make.root / "m").mkdir()
    torch.save({}, make.root / "m" / "model_world_size_0_rank_0.pt")
    assert "expected the shards of 0 ranks" in refused(make.root / "m")


def test_a_value_of_thousands_of_digits_does_not_fill_the_message(make):
    folder = make.folder("m")
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + size].replace(b"BF16", b"9" * 5000, 1)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + raw[8 + size :])
    assert "has the unknown type '999" in refused(folder)


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00b", "x" * 501, "\u202eb"])
def test_a_name_that_is_no_name(make, name):
    assert "its header is not valid safetensors JSON" in refused(make.folder("m", tensors={name: torch.ones(2)}))
    (make.root / "t").mkdir()
    torch.save({name: torch.ones(2)}, make.root / "t" / "pytorch_model.bin")
    assert "expected names of tensors, found" in refused(make.root / "t")


def test_a_name_that_stands_twice_in_a_header(make):
    folder = make.folder("m", tensors={"a": torch.ones(2)})
    entry = '"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 8]}'
    header = ("{" + entry % "2" + "," + entry % "1, 2" + "}").encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert "its header is not valid safetensors JSON" in refused(folder)


def test_containers_that_hold_themselves_or_double(make):
    """Ten containers that mention the one before twice would be a thousand; a list inside itself has no end."""
    nested: list = [torch.ones(2)]
    for _ in range(40):
        nested = [nested, nested]
    itself: dict = {"a.weight": torch.ones(3, 2), "doubled": nested}
    itself["again"] = itself
    (make.root / "m").mkdir()
    torch.save({"model": itself}, make.root / "m" / "a.pt")
    assert "a.weight" in open_weights(make.root / "m").tensors


def test_a_json_nested_too_deep_is_no_configuration(make):
    folder = make.folder("m")
    (folder / "config.json").write_text("[" * 100_000)
    assert open_weights(folder).config == {}
    (folder / "config.json").write_text(json.dumps({"a": 1}))
    assert open_weights(folder).config == {"a": 1}
