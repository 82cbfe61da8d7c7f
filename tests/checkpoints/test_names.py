"""Names: wrappers off, layers and roles read out, two checkpoints paired."""

import itertools

import pytest

from driftlab.checkpoints.names import is_embedding, is_head, natural_key, pair, place, unwrap
from driftlab.errors import CheckpointError

WRAPPERS = ("_orig_mod.", "module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


@pytest.mark.parametrize("order", list(itertools.permutations(WRAPPERS)), ids="".join)
def test_wrappers_come_off_in_any_order(order):
    assert unwrap("".join(order) + "model.layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_come_off_in_the_middle_of_a_name(wrapper):
    assert unwrap(f"model.layers.0.{wrapper}{wrapper}mlp.weight") == "model.layers.0.mlp.weight"


def test_words_that_only_contain_a_wrapper_stay():
    assert unwrap("my_module.submodule.weight") == "my_module.submodule.weight"


def test_numbers_sort_by_value():
    names = ["layers.10.w", "layers.9.w", "layers.1.w", "a", "layers.w"]
    assert sorted(names, key=natural_key) == ["a", "layers.1.w", "layers.9.w", "layers.10.w", "layers.w"]


@pytest.mark.parametrize(
    ("name", "layer", "role", "expert"),
    [
        ("model.layers.7.self_attn.q_proj.weight", 7, "self_attn.q_proj", None),
        ("model.language_model.layers.7.self_attn.q_proj.weight", 7, "self_attn.q_proj", None),
        ("transformer.h.3.attn.c_attn.weight", 3, "attn.c_attn", None),
        ("h.3.attn.c_attn.weight", 3, "attn.c_attn", None),
        ("model.layers.2.mlp.experts.11.down_proj.weight", 2, "mlp.experts.down_proj", 11),
        ("model.layers.2.mlp.experts.gate_up_proj", 2, "mlp.experts.gate_up_proj", None),
        ("model.visual.blocks.7.mlp.gate_proj.weight", 7, "visual.mlp.gate_proj", None),
        ("vision_tower.encoder.layers.4.fc1.weight", 4, "vision_tower.fc1", None),
        ("decoder.block.0.layer.1.DenseReluDense.wo.weight", 0, "decoder.layer.1.DenseReluDense.wo", None),
        ("encoder.block.0.layer.1.DenseReluDense.wo.weight", 0, "encoder.layer.1.DenseReluDense.wo", None),
        ("model.embed_tokens.weight", None, "embed_tokens", None),
        ("model.norm.weight", None, "norm", None),
        ("lm_head.weight", None, "lm_head", None),
    ],
)
def test_place(name, layer, role, expert):
    found = place(name)
    assert (found.layer, found.role, found.expert) == (layer, role, expert)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "transformer.wte.weight",
        "wpe.weight",
        "shared.weight",
        "tok_embeddings.weight",
        "embeddings.word_embeddings.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ],
)
def test_embeddings(name):
    assert is_embedding(name)
    assert not is_head(name)


@pytest.mark.parametrize("name", ["lm_head.weight", "embed_out.weight", "output.weight", "score.weight"])
def test_heads(name):
    assert is_head(name)
    assert not is_embedding(name)


@pytest.mark.parametrize(
    "name", ["layers.0.mlp.shared_expert.up_proj.weight", "layers.0.attention.output.dense.weight"]
)
def test_linear_weights_are_neither(name):
    assert not is_embedding(name)
    assert not is_head(name)


LAYERS = [f"layers.{i}.mlp.up_proj.weight" for i in range(4)]


@pytest.mark.parametrize(
    "prefix",
    ["", "model.", "model.language_model.", "language_model.model.", "base_model.model.model.", "transformer."],
)
@pytest.mark.parametrize("other", ["", "model.", "language_model.model."])
def test_prefixes_of_another_class_are_exchanged(prefix, other):
    found = pair([other + name for name in LAYERS], [prefix + name for name in LAYERS], "here")
    assert found == {other + name: prefix + name for name in LAYERS}


def test_a_vision_model_saved_by_the_newer_class_pairs_whole():
    base = ["visual.blocks.0.qkv.weight", *(f"model.{name}" for name in LAYERS), "lm_head.weight"]
    new = ["model.visual.blocks.0.qkv.weight", *(f"model.language_model.{name}" for name in LAYERS), "lm_head.weight"]
    assert pair(base, new, "here") == dict(zip(base, new, strict=True))


def test_names_that_would_become_one_are_not_stripped():
    twins = ["model.layers.0.w", "language_model.layers.0.w"]
    assert pair(twins, twins, "here") == {name: name for name in twins}


def test_added_and_missing_tensors_do_not_stop_the_rest():
    assert pair([*LAYERS, "gone.weight"], [*LAYERS, "new.weight"], "here") == {name: name for name in LAYERS}


@pytest.mark.parametrize("new", [["blocks.0.ffn.w", "blocks.1.ffn.w"], []], ids=["foreign", "none"])
def test_few_pairs_stop_with_both_patterns(new):
    with pytest.raises(CheckpointError) as caught:
        pair(["norm.weight", *LAYERS], new, "step_5")
    assert str(caught.value) == (
        f"step_5: only 0 of {len(new)} tensor names agree with the base; the base has names like "
        f"'layers.0.mlp.up_proj.weight', this checkpoint like {(new or ['(none)'])[0]!r}. "
        "Check that --base is the model this run started from."
    )
