"""One model in every training format gives the tensors, and the drift table, of its plain safetensors form."""

import argparse
import json
import pickle
import warnings
import zipfile

import pandas as pd
import pytest
import torch

from driftlab.checkpoints.weights import open_weights
from driftlab.errors import CheckpointError


def refused(path, base=None):
    with pytest.raises(CheckpointError) as caught:
        open_weights(path, base)
    return str(caught.value)


WAYS = {
    "bin": lambda save, t: save.torch("x", t),
    "bin shards": lambda save, t: save.bin_shards("x", t),
    "trainer's pt": lambda save, t: save.torch("x", {"model": t, "optimizer": {"m": torch.ones(3)}, "step": 3}, "a.pt"),
    "nested": lambda save, t: save.torch("x", {"state_dict": {"module": t}}, "policy.pt"),
    "lightning": lambda save, t: save.torch(
        "x", {"state_dict": {f"net.{n}": v for n, v in t.items()}, "pytorch-lightning_version": "2.6"}, "e.ckpt"
    ),
    "fsdp": lambda save, t: save.fsdp("x", t),
    "fsdp, 5 ranks": lambda save, t: save.fsdp("x", t, mesh=(5,)),
    "fsdp, columns": lambda save, t: save.fsdp("x", t, dim=1),
    "hsdp": lambda save, t: save.fsdp("x", t, mesh=(2, 3)),
    "fsdp, one rank": lambda save, t: save.fsdp("x", t, mesh=(1,)),
    "fsdp, plain rows": lambda save, t: save.fsdp_plain("x", t, 2, cut=True),
    "fsdp, plain copies": lambda save, t: save.fsdp_plain("x", t, 2, cut=False),
    "dcp": lambda save, t: save.dcp("x", dict(t)),
    "dcp with optimizer": lambda save, t: save.dcp("x", {"model": t, "optim": {"m": torch.ones(2)}, "step": 1}),
    "zero-2": lambda save, t: save.zero2("x", t),
    "zero-3": lambda save, t: save.zero3("x", t),
    "zero-3, frozen": lambda save, t: save.zero3("x", t, world=2, frozen=("model.embed_tokens.weight",)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_layout_gives_the_table_of_the_plain_form(make, save, same, drift, way):
    dtype = torch.float32 if way.startswith("zero-3") else torch.bfloat16
    before, after = make.tensors(0, dtype), make.tensors(7, dtype)
    base, plain = make.folder("base", tensors=before), make.folder("plain", tensors=after)
    other = WAYS[way](save, after)
    same(other, after)
    pd.testing.assert_frame_equal(drift(base, other), drift(base, plain), check_exact=True)


def test_a_layout_serves_as_the_base_too(make, save, drift):
    base, new = make.folder("base"), make.folder("new", 7)
    pd.testing.assert_frame_equal(drift(save.fsdp("x", make.tensors()), new), drift(base, new), check_exact=True)


# -- torch files --------------------------------------------------------------------------------------------------


def test_views_strides_and_shared_storage_are_read_as_they_look(save, same):
    big = torch.arange(60.0).reshape(6, 10)
    tensors = {"turned": big.mT, "slice": big[1:5, 2:9], "row": big[3], "scalar": torch.tensor(2.0), "none": big[:0]}
    same(save.torch("x", tensors), tensors)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_protocols_that_torch_reads_and_those_it_does_not(make, save, same, protocol):
    folder = save.folder("x")
    torch.save(make.tensors(3), folder / "pytorch_model.bin", pickle_protocol=protocol)
    if protocol < 4:
        same(folder, make.tensors(3))
    else:
        assert f"expected pickle protocol 2, found {protocol}" in refused(folder)


def test_lightning_itself(make, save, same):
    """A checkpoint that a Lightning trainer saves, with its loops, callbacks and hyperparameters beside the model."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, width):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(width, 3), torch.nn.Linear(3, 5, bias=False))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

    module = Module(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(max_steps=1, accelerator="cpu", enable_checkpointing=False, **quiet)
        trainer.fit(module, torch.utils.data.DataLoader(torch.randn(4, 7), batch_size=2))
        trainer.save_checkpoint(save.folder("x") / "step=1.ckpt")
    weights = same(save.root / "x", dict(module.net.state_dict()))
    assert any("without the Lightning module's attribute 'net'" in note for note in weights.notes)


def test_two_records_of_one_size_are_told_apart(save, same):
    """Storages of one size fit several places of the map; the file's bytes decide."""
    tensors = {f"layers.{i}.weight": torch.full((1024,), float(i)) for i in range(3)}
    path = save.torch("x", tensors, "pytorch_model.bin")
    same(path, tensors)
    same(save.torch("y", {"a": tensors["layers.1.weight"]}), {"a": tensors["layers.1.weight"]})


def test_what_lies_beside_the_model_is_said(save):
    content = {"epoch": 3, "model_state_dict": {"a.weight": torch.ones(3, 2)}, "optimizer_state_dict": {}}
    assert open_weights(save.torch("x", content, "a.pt")).notes == [
        "the model is model_state_dict; beside it, not read: epoch, optimizer_state_dict"
    ]


def test_settings_of_trainers_are_stand_ins(save, same):
    tensors = {"a.weight": torch.ones(3, 2)}
    same(save.torch("x", {"args": argparse.Namespace(lr=1.0), "model": tensors}, "a.pt"), tensors)


def test_anything_else_is_refused_by_its_name_and_not_run(make, save):
    path = save.torch("x", {"model": {"a": torch.ones(3, 2)}, "x": make.payload()}, "a.pt")
    assert "a.pt: asks for posix.system, which is neither a tensor nor a known trainer's setting" in refused(path)
    assert not make.mark.exists()


def test_a_whole_module_is_refused(save):
    path = save.torch("x", torch.nn.Linear(3, 2), "a.pt")
    assert "asks for torch.nn.modules.linear.Linear" in refused(path)


def test_no_state_dict(save):
    assert "expected a state dict of tensors, found epoch, best. Save the" in refused(
        save.torch("x", {"epoch": 1, "best": {}}, "a.pt")
    )
    assert "expected a dictionary of tensors, found a list" in refused(save.torch("y", [torch.ones(2)], "a.pt"))


def test_several_torch_files_are_not_guessed_between(save):
    save.torch("x", {"a": torch.ones(2)}, "a.pt")
    assert "found 2 torch files (a.pt, b.pt)" in refused(save.torch("x", {"a": torch.ones(2)}, "b.pt"))
    assert list(open_weights(save.root / "x" / "b.pt").tensors) == ["a"]


def test_an_expanded_tensor_asks_for_no_memory(save):
    path = save.torch("x", {"a": torch.zeros(1).expand(10**6, 10**6)})
    assert "tensor a of shape [1000000, 1000000] repeats 4 stored bytes" in refused(path)


@pytest.mark.parametrize("keep", [0, 1, 40, 0.5, 0.9, -1])
def test_a_truncated_file_is_named(make, save, keep):
    path = save.torch("x", make.tensors()) / "pytorch_model.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep) if isinstance(keep, float) else keep])
    assert str(path) in refused(path.parent)


def test_a_damaged_pickle_is_seen_by_its_checksum(make, save):
    path = save.torch("x", make.tensors()) / "pytorch_model.bin"
    raw = bytearray(path.read_bytes())
    at = raw.index(b"model.norm")
    raw[at] = ord("n")
    path.write_bytes(raw)
    assert "damaged or truncated" in refused(path.parent)


def test_a_forged_storage_size_is_refused(save):
    """A pickle that claims more bytes than its record would read its neighbour's."""
    path = save.torch("x", {"a": torch.ones(100), "b": torch.ones(400)}) / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in records.items():
            archive.writestr(name, raw.replace(b"Kd", b"Kx") if name.endswith("data.pkl") else raw)
    assert "its storages are not as long as its records" in refused(path.parent)


def test_compressed_records_and_programs_are_refused(save):
    path = save.torch("x", {"a": torch.ones(100)}) / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in records.items():
            archive.writestr(name, raw)
    assert "expected uncompressed records" in refused(path.parent)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/constants.pkl", b"")
    assert "a TorchScript program, which would have to be run" in refused(path.parent)


def test_an_index_of_bin_shards_is_checked(make, save):
    folder = save.bin_shards("x", make.tensors())
    (folder / "pytorch_model-00002-of-00003.bin").unlink()
    assert "the index names 3 shards, pytorch_model-00002-of-00003.bin is missing" in refused(folder)


# -- FSDP ---------------------------------------------------------------------------------------------------------


def test_buffers_lie_whole_on_every_rank(make, save, same):
    tensors = make.tensors()
    same(save.fsdp("x", tensors, buffers=("model.norm.weight",)), tensors)


def test_a_missing_rank_and_two_worlds(make, save):
    folder = save.fsdp("x", make.tensors(), mesh=(3,))
    (folder / "model_world_size_3_rank_1.pt").unlink()
    assert "expected the shards of 3 ranks, found 2; rank 1 is missing" in refused(folder)
    save.fsdp("x", make.tensors())
    assert "expected the shards of one world size, found those of 2 and 3" in refused(folder)


def test_ranks_of_two_saves(make, save):
    folder = save.fsdp("x", make.tensors())
    torch.save({"a": torch.ones(2)}, folder / "model_world_size_2_rank_1.pt")
    assert "model_world_size_2_rank_1.pt: expected the tensors of model_world_size_2_rank_0.pt" in refused(folder)


def test_one_rank_alone_is_no_model(make, save):
    folder = save.fsdp("x", make.tensors())
    (folder / "model_world_size_2_rank_0.pt").rename(save.folder("y") / "policy.pt")
    assert "is one rank's part of a distributed tensor" in refused(save.root / "y")


def test_a_cut_in_two_directions_is_refused_by_its_placement(save):
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    folder, full = save.folder("x"), torch.ones(4, 6)
    mesh = save.mesh((2, 2))
    for rank in range(4):
        spec = DTensorSpec(mesh, (Shard(0), Shard(1)), tensor_meta=TensorMeta(full.shape, full.stride(), full.dtype))
        state = {"a": DTensor(torch.ones(2, 3), spec, requires_grad=False)}
        torch.save(state, folder / f"model_world_size_4_rank_{rank}.pt")
    assert "tensor a is placed as (Shard(0), Shard(1)) on a mesh of [2, 2] ranks" in refused(folder)


# -- distributed checkpoints --------------------------------------------------------------------------------------


def test_dcp_without_metadata_or_data(make, save):
    folder = save.dcp("x", make.tensors())
    raw = (folder / ".metadata").read_bytes()
    (folder / ".metadata").unlink()
    assert "expected .metadata beside __0_0.distcp, found none" in refused(folder)
    (folder / ".metadata").write_bytes(raw[:-20])
    assert "found a damaged or foreign pickle" in refused(folder)
    (folder / ".metadata").write_bytes(raw)
    data = folder / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-10])
    assert "truncated" in refused(folder)


def test_a_metadata_file_that_asks_for_more_is_refused_and_not_run(make, save):
    folder = save.dcp("x", make.tensors())
    (folder / ".metadata").write_bytes(pickle.dumps(make.payload()))
    assert "it asks for posix.system" in refused(folder)
    assert not make.mark.exists()


def test_chunks_of_many_ranks_are_put_together(save, same):
    """The chunks that 2 x 2 ranks write of one matrix, by the real writer."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

    full = torch.randn(5, 7)
    folder = save.dcp("x", {"a": full[:3, :4].clone(), "b": full[:3, 4:].clone(), "c": full[3:].clone()})
    reader = dcp.FileSystemReader(folder)
    metadata = reader.read_metadata()
    boxes = {"a": ((0, 0), (3, 4)), "b": ((0, 4), (3, 3)), "c": ((3, 0), (2, 7))}
    first = metadata.state_dict_metadata["a"]
    first.size = full.shape
    first.chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in boxes.values()]
    stored = {index.fqn: place for index, place in metadata.storage_data.items()}
    metadata.storage_data = {MetadataIndex("a", torch.Size(boxes[n][0])): stored[n] for n in boxes}
    metadata.state_dict_metadata = {"a": first}
    metadata.planner_data = None
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    same(folder, {"a": full})
    first.chunks = first.chunks[:2]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "the chunks of tensor a do not fill its shape [5, 7]" in refused(folder)


# -- ZeRO ---------------------------------------------------------------------------------------------------------


def test_zero_takes_the_step_that_latest_names(make, save, same):
    folder = save.zero2("x", make.tensors(1))
    save.zero2("x", make.tensors(2), tag="global_step9")
    same(folder, make.tensors(2))


def test_zero_3_with_a_rank_missing_or_sizes_that_do_not_add_up(make, save):
    folder = save.zero3("x", make.tensors(0, torch.float32)) / "global_step5"
    optim = folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    raw = optim.read_bytes()
    optim.unlink()
    assert "expected optim states of every rank, found 2; rank 1 is missing" in refused(folder)
    optim.write_bytes(raw)
    state = torch.load(folder / "zero_pp_rank_0_mp_rank_00_model_states.pt", weights_only=True)
    del state["param_shapes"][0]["model.embed_tokens.weight"]
    torch.save(state, folder / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    message = refused(folder)
    assert "entries a rank, the flat groups hold" in message
    assert "zero_to_fp32.py" in message


def test_zero_cut_for_tensor_parallelism_is_refused(save):
    for rank in range(2):
        folder = save.torch("x/global_step5", {"module": {"a": torch.ones(2)}}, f"mp_rank_{rank:02d}_model_states.pt")
    assert "found several mp_ranks" in refused(folder)


# -- which format -------------------------------------------------------------------------------------------------


def test_safetensors_go_before_every_other_format(make, save, same):
    tensors = make.tensors(4)
    folder = save.zero2("m", make.tensors(1))
    save.torch("m", make.tensors(2))
    save.dcp("m", make.tensors(3))
    make.folder("m", tensors=tensors)
    weights = same(folder, tensors)
    assert dict(weights.ignored)["pytorch_model.bin"] == "PyTorch weights; not opened"


def test_safetensors_that_hold_parts_of_tensors_are_refused(make):
    from safetensors.torch import save_file

    folder = make.folder("m")
    save_file({"a": torch.ones(2)}, folder / "model.safetensors", metadata={"DCP_SHARDING_INFO": json.dumps({})})
    assert "holds parts of tensors" in refused(folder)
