"""One set of weights is chosen by a fixed precedence, the rest is listed, and nothing else is opened."""

import json

import pytest
import torch
from safetensors.torch import save_file

from driftlab.checkpoints.weights import has_model, open_weights
from driftlab.errors import CheckpointError


def refused(path):
    with pytest.raises(CheckpointError) as caught:
        open_weights(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_one_file(make, model_names):
    weights = open_weights(make.folder("m"))
    assert list(weights.tensors) == model_names
    assert weights.tied is True
    assert weights.ignored == []
    assert weights.notes == []


def test_shards_with_an_index(make, model_names):
    weights = open_weights(make.sharded("m"))
    assert list(weights.tensors) == model_names
    assert len({tensor.file for tensor in weights.tensors.values()}) == 3


def test_shards_without_an_index(make, model_names):
    assert list(open_weights(make.sharded("m", index=False)).tensors) == model_names


def test_the_only_other_file(make, model_names):
    assert list(open_weights(make.folder("m", name="consolidated.safetensors")).tensors) == model_names


def test_a_single_file_and_its_config(make, model_names):
    weights = open_weights(make.folder("m") / "model.safetensors")
    assert list(weights.tensors) == model_names
    assert weights.tied is True


@pytest.mark.parametrize("inner", ["actor/huggingface", "actor", "hf_model", "weights", "policy"])
def test_a_trainers_step_folder_holds_the_model_further_in(make, inner):
    folder = make.folder(f"global_step_10/{inner}")
    make.clutter(folder.parent)
    assert open_weights(make.root / "global_step_10").path == folder
    assert has_model(make.root / "global_step_10")
    assert not make.mark.exists()


def test_model_safetensors_goes_before_an_index_and_says_so(make):
    folder = make.sharded("m", step=5)
    make.folder("m", step=0)
    weights = open_weights(folder)
    assert {tensor.file.name for tensor in weights.tensors.values()} == {"model.safetensors"}
    assert "model.safetensors was taken, as transformers does" in weights.notes[0]
    assert ("model-00001-of-00003.safetensors", "model.safetensors is the model") in weights.ignored


def test_everything_else_is_listed_and_never_opened(make, model_names):
    folder = make.folder("m")
    make.clutter(folder)
    save_file({"x": torch.ones(2)}, folder / "model.fp16.safetensors")
    save_file({"x": torch.ones(2)}, folder / "adapter_model.safetensors")
    save_file({"x": torch.ones(2)}, folder / "optimizer.safetensors")
    for name in ("m-Q4_K_M.gguf", "last.ckpt", "tf_model.h5", "consolidated.00.pth"):
        (folder / name).write_bytes(b"\x80\x04junk")
    weights = open_weights(folder)
    assert list(weights.tensors) == model_names
    assert dict(weights.ignored) == {
        "adapter_model.safetensors": "adapter beside full weights: not applied",
        "consolidated.00.pth": "PyTorch weights; not opened",
        "last.ckpt": "a Lightning checkpoint; not opened",
        "m-Q4_K_M.gguf": "a GGUF file, whose rows are reordered and often quantised; not opened",
        "model.fp16.safetensors": "model.safetensors is the model",
        "optimizer.pt": "training state",
        "optimizer.safetensors": "training state",
        "pytorch_model.bin": "PyTorch weights; not opened",
        "rng_state_0.pth": "training state",
        "scheduler.pt": "training state",
        "tf_model.h5": "weights of another framework; not opened",
        "trainer_state.json": "training state",
        "training_args.bin": "training state",
    }
    assert weights.notes == ["an adapter lies beside the full weights and was not applied"]
    assert not make.mark.exists()


def test_a_pickle_under_the_name_of_weights_is_refused_and_not_run(make):
    make.clutter(make.root / "m")
    assert "found a bare pickle: torch before 1.6 wrote such" in refused(make.root / "m")
    assert not make.mark.exists()


@pytest.mark.parametrize(
    ("file", "what", "step"),
    [
        ("mp_rank_00/model_optim_rng.pt", "a Megatron checkpoint", "Megatron Bridge"),
        ("checkpoint_metadata.json", "a nanotron checkpoint", "nanotron's examples"),
        ("consolidated.01.pth", "a model cut for tensor parallelism", "convert_llama_weights_to_hf"),
        ("m-Q8_0.gguf", "a GGUF file, whose rows are reordered", "bf16 or fp32 folder"),
        ("flax_model.msgpack", "weights of another framework", "Export them as safetensors"),
    ],
)
def test_a_format_that_is_not_read_is_called_by_its_name(make, file, what, step):
    target = make.root / "m" / file
    make.clutter(target.parent)
    (target.parent / "pytorch_model.bin").unlink()
    (make.root / "m" / "common.pt").write_bytes(b"\x80\x04junk")
    target.write_bytes(b"\x80\x04junk")
    message = refused(make.root / "m")
    assert f"expected weights, found {what}" in message
    assert step in message
    assert not make.mark.exists()


def test_an_adapter_without_its_base_asks_for_it(make):
    make.folder("m", name="adapter_model.safetensors")
    assert "found an adapter without its base. Give the model it was trained on with --base." in refused(
        make.root / "m"
    )


@pytest.mark.parametrize("file", ["m.gguf", "tf_model.h5", "training_args.bin", "adapter_model.bin", "rng_state_0.pth"])
def test_a_single_file_of_another_format_is_not_opened(make, file):
    path = make.root / file
    path.write_bytes(b"\x80\x04junk")
    assert "expected a checkpoint" in refused(path)


def test_one_shard_given_alone_is_said(make):
    weights = open_weights(make.sharded("m") / "model-00002-of-00003.safetensors")
    assert weights.notes == [
        "model-00002-of-00003.safetensors is one shard, given alone: the rest of the model is not compared"
    ]


def test_a_single_file_that_holds_no_weights(make):
    make.sharded("m")
    message = refused(make.root / "m" / "model.safetensors.index.json")
    assert "found a .json file. Give the folder that holds the model." in message


@pytest.mark.parametrize("files", [[], ["notes.txt", "config.json"]])
def test_a_folder_without_weights_says_what_it_holds(make, files):
    folder = make.root / "m"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    expected = "config.json, notes.txt" if files else "an empty folder"
    assert f"expected weights, found {expected}. Give a folder that holds a model." in refused(folder)


def test_a_path_that_is_not_there(make):
    assert "found nothing. Give a local path, or hf:org/name@revision" in refused(make.root / "Qwen3-4B")


def test_a_link_to_a_lost_folder(make):
    (make.root / "step_5").symlink_to(make.root / "gone")
    assert "which does not exist" in refused(make.root / "step_5")


# -- index and shards disagree ------------------------------------------------------------------------------------


def read_index(folder):
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def test_a_shard_that_the_index_names_is_missing(make):
    folder = make.sharded("m")
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "the index names 3 shards, model-00002-of-00003.safetensors is missing" in refused(folder)


def test_a_shard_without_index_is_missing(make):
    folder = make.sharded("m", index=False)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "expected 3 shards, found 2; model-00002-of-00003.safetensors is missing" in refused(folder)


def test_a_shard_whose_link_is_broken(make):
    folder = make.sharded("m")
    shard = folder / "model-00002-of-00003.safetensors"
    shard.unlink()
    shard.symlink_to("../blobs/abc")
    with pytest.raises(CheckpointError, match=r"model-00002.*a link to \.\./blobs/abc, which does not exist"):
        open_weights(folder)


def test_the_index_places_a_tensor_that_no_shard_has(make):
    folder = make.sharded("m")
    make.index(folder, read_index(folder) | {"model.extra.weight": "model-00001-of-00003.safetensors"})
    message = refused(folder)
    assert "the index places model.extra.weight in model-00001-of-00003.safetensors, whose header does not" in message
    assert "save the checkpoint again" in message


def test_the_index_places_a_tensor_in_the_wrong_shard(make):
    folder = make.sharded("m")
    make.index(folder, read_index(folder) | {"model.norm.weight": "model-00001-of-00003.safetensors"})
    assert "the index places model.norm.weight in model-00001" in refused(folder)


def test_a_shard_has_a_tensor_that_the_index_does_not_name(make, model_names):
    folder = make.sharded("m")
    index = read_index(folder)
    del index["model.norm.weight"]
    make.index(folder, index)
    weights = open_weights(folder)
    assert list(weights.tensors) == model_names[:-1]
    assert weights.notes == ["1 stored tensors that the index does not place there were left out"]


def test_a_tensor_in_two_shards_is_taken_where_the_index_says(make):
    folder = make.sharded("m")
    save_file(make.tensors(7), folder / "model-00001-of-00003.safetensors")
    weights = open_weights(folder)
    assert weights.tensors["model.norm.weight"].file.name == "model-00003-of-00003.safetensors"
    assert len(weights.notes) == 1


def test_a_tensor_in_two_shards_without_index_is_refused(make):
    folder = make.sharded("m", index=False)
    save_file(make.tensors(7), folder / "model-00001-of-00003.safetensors")
    assert "is stored twice, in model-00001-of-00003.safetensors and model-0000" in refused(folder)


def test_two_names_that_unwrap_to_one_are_refused(make):
    tensors = {"model.norm.weight": torch.ones(3), "_orig_mod.model.norm.weight": torch.ones(3)}
    assert "tensor model.norm.weight is stored twice" in refused(make.folder("m", tensors=tensors))


def test_shards_that_the_index_does_not_name_are_listed(make):
    folder = make.sharded("m")
    save_file({"x": torch.ones(2)}, folder / "model-00004-of-00004.safetensors")
    assert open_weights(folder).ignored == [("model-00004-of-00004.safetensors", "not named by the index")]


def test_an_index_of_fewer_shards_than_their_names_count_is_said(make):
    folder = make.sharded("m")
    make.index(folder, {n: shard for n, shard in read_index(folder).items() if "00003-of" not in shard})
    assert open_weights(folder).notes == ["the index names 2 shards of 3"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 3}}', '{"weight_map": ["a"]}', "[" * 100_000],
)
def test_an_index_that_is_no_index(make, content):
    folder = make.sharded("m")
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match="expected an index with a weight_map, found none"):
        open_weights(folder)


@pytest.mark.parametrize(
    "shard", ["../other/model.safetensors", "/etc/passwd", "pytorch_model.bin", "sub/x.safetensors"]
)
def test_an_index_cannot_point_elsewhere(make, shard):
    folder = make.sharded("m")
    make.index(folder, {"a": shard})
    with pytest.raises(CheckpointError, match=r"expected shard names ending in \.safetensors in the same folder"):
        open_weights(folder)


def test_two_sets_of_shards_without_index(make):
    make.sharded("m", count=2, index=False)
    message = refused(make.sharded("m", count=3, index=False))
    assert "found 2 and no index" in message
    assert "model-*-of-00002.safetensors and model-*-of-00003.safetensors" in message


def test_two_models_in_one_folder(make):
    make.folder("m", name="a.safetensors")
    message = refused(make.folder("m", name="b.safetensors"))
    assert "expected one model, found 2 safetensors files (a.safetensors, b.safetensors)" in message
    assert "Give the one file" in message


def test_no_tensors(make):
    assert "expected tensors, found a header without any" in refused(make.folder("m", tensors={}))


def test_an_adapter_inside_the_weights_is_refused(make):
    tensors = make.tensors() | {"model.layers.0.self_attn.q_proj.lora_A.default.weight": torch.ones(2, 12)}
    assert "an adapter that is not merged into them" in refused(make.folder("m", tensors=tensors))


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False}, False),
        ({"text_config": {"tie_word_embeddings": True}}, True),
        ({}, None),
        (None, None),
    ],
)
def test_what_the_config_says_about_tying(make, config, tied):
    assert open_weights(make.folder("m", config=config)).tied is tied


def test_a_damaged_config_is_no_config(make):
    folder = make.folder("m")
    (folder / "config.json").write_text("{")
    assert open_weights(folder).config == {}


def test_the_digest_covers_every_shard(make):
    one, two = make.sharded("a"), make.sharded("b")
    assert open_weights(one).digest == open_weights(two).digest
    save_file({"model.norm.weight": torch.ones(5)}, two / "model-00003-of-00003.safetensors")
    make.index(two, {n: s for n, s in read_index(two).items() if "00003" not in s or n == "model.norm.weight"})
    assert open_weights(one).digest != open_weights(two).digest
