"""Fused, turned and stacked layouts give the matrices, and the drift table, of one matrix for each linear map."""

import struct

import pandas as pd
import pytest
import torch

from driftlab.checkpoints.architectures import arrange
from driftlab.checkpoints.weights import open_weights

H, INNER, E = 12, 10, 3  # hidden, intermediate, experts: no two alike, and 2 INNER != H
HEADS, GROUPS, HEAD = 6, 2, 4


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def config(kind, **more):
    return {
        "model_type": kind, "hidden_size": H, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
        "head_dim": HEAD, "intermediate_size": INNER, **more,
    }  # fmt: skip


@pytest.fixture
def split(make):
    """Save tensors under a configuration and return what is measured, by name, and the notes."""

    def read(tensors, settings, path="m"):
        weights = open_weights(
            make.folder(path, tensors={n: t.contiguous().clone() for n, t in tensors.items()}, config=settings)
        )
        return {name: info.read() for name, info in weights.tensors.items()}, weights.notes

    return read


def equal(found, wanted):
    assert set(found) == set(wanted)
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name


# -- attention and feed-forward ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["phi3", "llama", "qwen3"])
def test_parts_one_after_the_other(split, kind):
    q, k, v = random(24, H), random(8, H, seed=1), random(8, H, seed=2)
    gate, up, bias = random(INNER, H, seed=3), random(INNER, H, seed=4), random(40, seed=5)
    prefix = "model.layers.0."
    found, notes = split(
        {
            f"{prefix}self_attn.qkv_proj.weight": torch.cat([q, k, v]),
            f"{prefix}self_attn.qkv_proj.bias": bias,
            f"{prefix}mlp.gate_up_proj.weight": torch.cat([gate, up]),
        },
        config(kind),
    )
    names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
    wanted = dict(zip([f"{name}.weight" for name in names], (q, k, v), strict=True))
    wanted |= dict(zip([f"{name}.bias" for name in names], (bias[:24], bias[24:32], bias[32:]), strict=True))
    equal(found, wanted | {f"{prefix}mlp.gate_proj.weight": gate, f"{prefix}mlp.up_proj.weight": up})
    assert notes == []


@pytest.mark.parametrize(
    ("kind", "module", "settings", "groups", "share"),
    [
        ("gpt_neox", "query_key_value", {}, 3, 1),
        ("bloom", "query_key_value", {"n_head": 3}, 3, 1),
        ("falcon", "query_key_value", {"new_decoder_architecture": True, "num_kv_heads": 2}, 2, 3),
        ("falcon", "query_key_value", {"multi_query": True}, 1, 6),
        ("falcon", "query_key_value", {"multi_query": False}, 6, 1),
        ("internlm2", "wqkv", {"num_key_value_heads": 2}, 2, 3),
    ],
)
def test_rows_head_by_head(split, kind, module, settings, groups, share):
    """The reference is built head by head in a loop, as the models' own code takes them apart."""
    heads = groups * share
    q = [random(HEAD, H, seed=i) for i in range(heads)]
    k = [random(HEAD, H, seed=100 + i) for i in range(groups)]
    v = [random(HEAD, H, seed=200 + i) for i in range(groups)]
    rows = [part for g in range(groups) for part in (*q[g * share : (g + 1) * share], k[g], v[g])]
    sizes = {"model_type": kind, "hidden_size": heads * HEAD, "num_attention_heads": heads} | settings
    found, notes = split({f"h.0.attn.{module}.weight": torch.cat(rows)}, sizes)
    equal(found, {f"h.0.attn.{n}_proj.weight": torch.cat(part) for n, part in zip("qkv", (q, k, v), strict=True)})
    assert notes == []


def test_gpt2_is_turned_and_split_like_the_model_itself(make):
    """Inputs through transformers' Conv1D equal inputs times the transposed matrices that are measured."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=12, n_head=3, n_layer=1, vocab_size=20, n_positions=8))
    model.save_pretrained(make.root / "gpt2")
    weights = open_weights(make.root / "gpt2")
    found = {name: info.read() for name, info in weights.tensors.items()}
    block, x = model.transformer.h[0], random(5, 12)
    parts = torch.cat([found[f"transformer.h.0.attn.{part}_proj.weight"] for part in "qkv"])
    bias = torch.cat([found[f"transformer.h.0.attn.{part}_proj.bias"] for part in "qkv"])
    assert torch.allclose(block.attn.c_attn(x), x @ parts.mT + bias, atol=1e-6)
    assert found["transformer.h.0.mlp.c_fc.weight"].shape == (48, 12)
    assert torch.allclose(block.mlp.c_fc(x), x @ found["transformer.h.0.mlp.c_fc.weight"].mT, atol=1e-6)
    assert found["transformer.h.0.mlp.c_proj.weight"].shape == (12, 48)
    assert weights.notes == []


def test_left_and_right_angles_of_gpt2_are_not_swapped(make, drift):
    """Turned storage has its left and right exchanged: the table must be that of the turned back matrices."""
    name = "h.0.mlp.c_fc.weight"
    before, after = random(12, 40), random(12, 40) + 0.1 * random(12, 40, seed=1)
    stored = [
        make.folder(p, tensors={name: t}, config={"model_type": "gpt2"}) for p, t in (("a", before), ("b", after))
    ]
    linear = [make.folder(p, tensors={name: t.mT.contiguous()}, config={}) for p, t in (("c", before), ("d", after))]
    found, wanted = drift(*stored), drift(*linear)
    pd.testing.assert_frame_equal(found, wanted, check_exact=True)
    assert found["max_angle_left_deg"][0] != pytest.approx(found["max_angle_right_deg"][0])


@pytest.mark.parametrize(
    ("name", "shape", "settings", "module"),
    [
        ("layers.0.self_attn.qkv_proj.weight", (40, H), {}, "qkv_proj"),
        ("layers.0.self_attn.qkv_proj.weight", (39, H), config("phi3"), "qkv_proj"),
        ("layers.0.attn.Wqkv.weight", (40, H), config("dbrx"), "Wqkv"),
        ("layers.0.attn.query_key_value.weight", (40, H), config("chatglm"), "query_key_value"),
        ("layers.0.mlp.gate_up_proj.weight", (21, H), config("phi3"), "gate_up_proj"),
    ],
)
def test_what_is_not_known_is_measured_as_stored_and_said(split, name, shape, settings, module):
    tensor = random(*shape)
    found, (note,) = split({name: tensor}, settings)
    equal(found, {name: tensor})
    assert f"1 fused tensors ({module}) are measured as stored: their parts are not known" in note


def test_parts_that_are_stored_already_are_not_replaced(split):
    tensors = {
        "l.0.mlp.gate_up_proj.weight": random(2 * INNER, H),
        "l.0.mlp.gate_proj.weight": random(INNER, H, seed=1),
    }
    equal(split(tensors, config("phi3"))[0], tensors)


def test_fused_and_split_files_pair(make, drift):
    q, k, v = random(24, H), random(8, H, seed=1), random(8, H, seed=2)
    fused, parts = (
        "model.layers.0.self_attn.qkv_proj.weight",
        [f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv"],
    )
    moved = [t + 0.1 * random(*t.shape, seed=9) for t in (q, k, v)]
    base = make.folder("base", tensors=dict(zip(parts, (q, k, v), strict=True)), config=config("llama"))
    one = make.folder("one", tensors={fused: torch.cat(moved)}, config=config("llama"))
    two = make.folder("two", tensors=dict(zip(parts, moved, strict=True)), config=config("llama"))
    pd.testing.assert_frame_equal(drift(base, one), drift(base, two), check_exact=True)


# -- experts --------------------------------------------------------------------------------------------------------


def experts():
    gate, up = random(E, INNER, H), random(E, INNER, H, seed=1)
    return gate, up, random(E, H, INNER, seed=2)


def named(prefix, gate, up, down, names=("gate_proj", "up_proj", "down_proj")):
    return {
        f"{prefix}experts.{i}.{name}.weight": stack[i]
        for i in range(E)
        for name, stack in zip(names, (gate, up, down), strict=True)
    }


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3", "olmoe"])
def test_stacks_of_experts_are_the_experts_one_by_one(split, kind):
    gate, up, down = experts()
    prefix = "model.layers.0.mlp."
    found, notes = split(
        {f"{prefix}experts.gate_up_proj": torch.cat([gate, up], 1), f"{prefix}experts.down_proj": down}, config(kind)
    )
    equal(found, named(prefix, gate, up, down))
    assert notes == []


@pytest.mark.parametrize("kind", ["llama4_text", "qwen3_vl_moe_text"])
def test_stacks_that_store_inputs_first(split, kind):
    gate, up, down = experts()
    prefix = "model.layers.0.feed_forward."
    stored = {
        f"{prefix}experts.gate_up_proj": torch.cat([gate, up], 1).mT,
        f"{prefix}experts.down_proj": down.mT,
    }
    equal(split(stored, {"model_type": "x", "text_config": config(kind)})[0], named(prefix, gate, up, down))


def test_shapes_go_before_the_usual_orientation(split):
    """A family that usually stores outputs first, saved by a version that stores inputs first."""
    gate, up, down = experts()
    prefix = "model.layers.0.mlp."
    stored = {f"{prefix}experts.gate_up_proj": torch.cat([gate, up], 1).mT, f"{prefix}experts.down_proj": down.mT}
    equal(split(stored, config("qwen3_moe"))[0], named(prefix, gate, up, down))


def test_gpt_oss_takes_gate_and_up_in_turn(split):
    gate, up, down = experts()
    prefix = "model.layers.0.mlp."
    both = torch.stack([gate, up], 2).reshape(E, 2 * INNER, H)
    bias = random(E, 2 * INNER, seed=4)
    stored = {
        f"{prefix}experts.gate_up_proj": both.mT,
        f"{prefix}experts.down_proj": down.mT,
        f"{prefix}experts.gate_up_proj_bias": bias,
    }
    wanted = named(prefix, gate, up, down)
    for i in range(E):
        wanted[f"{prefix}experts.{i}.gate_proj.bias"] = bias[i, 0::2]
        wanted[f"{prefix}experts.{i}.up_proj.bias"] = bias[i, 1::2]
    equal(split(stored, config("gpt_oss"))[0], wanted)


def test_mixtral_goes_back_to_its_names(split):
    gate, up, down = experts()
    stored = {
        "model.layers.0.mlp.experts.gate_up_proj": torch.cat([gate, up], 1),
        "model.layers.0.mlp.experts.down_proj": down,
        "model.layers.0.mlp.gate.weight": random(E, H, seed=8),
    }
    wanted = named("model.layers.0.block_sparse_moe.", gate, up, down, ("w1", "w3", "w2"))
    wanted["model.layers.0.block_sparse_moe.gate.weight"] = random(E, H, seed=8)
    equal(split(stored, config("mixtral"))[0], wanted)


def test_a_real_mixture_saved_by_transformers_and_as_its_state_dict(make, drift):
    """What transformers saves and what a trainer writes from the same model are one table."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    settings = Qwen3MoeConfig(
        vocab_size=20, hidden_size=H, intermediate_size=14, moe_intermediate_size=INNER, num_hidden_layers=1,
        num_experts=E, num_experts_per_tok=2, num_attention_heads=3, num_key_value_heads=1, head_dim=4,
        decoder_sparse_step=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(settings)
    model.save_pretrained(make.root / "base")
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01 * torch.randn_like(weight)
    model.save_pretrained(make.root / "plain")
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    assert any(tensor.ndim == 3 for tensor in state.values())
    stacked = make.folder("stacked", tensors=state, config=model.config.to_dict())
    pd.testing.assert_frame_equal(
        drift(make.root / "base", stacked), drift(make.root / "base", make.root / "plain"), check_exact=True
    )


def test_layouts_mixed_in_one_checkpoint(split):
    gate, up, down = experts()
    first, second = "model.layers.0.mlp.", "model.layers.1.mlp."
    stored = {f"{first}experts.gate_up_proj": torch.cat([gate, up], 1), f"{first}experts.down_proj": down}
    equal(
        split(stored | named(second, gate, up, down), config("qwen3_moe"))[0],
        named(first, gate, up, down) | named(second, gate, up, down),
    )


def test_stacks_of_an_unknown_model_are_measured_expert_by_expert(split):
    stack = random(E, 7, 9)
    found, (note,) = split({"l.0.moe.experts.down_proj": stack}, {})
    equal(found, {f"l.0.moe.experts.{i}.down_proj.weight": stack[i] for i in range(E)})
    assert "1 stacks of experts (l.0.moe.experts.down_proj) are measured expert by expert as stored" in note


@pytest.mark.parametrize("config", [{}, {"model_type": 3}, {"text_config": []}, {"model_type": "gpt2", "n_head": "x"}])
def test_a_strange_configuration_changes_nothing(split, config):
    tensors = {"a.b.weight": random(3, 4)}
    equal(split(tensors, config)[0], tensors)
    assert arrange({}, config) == ({}, [])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("h.0.mlp.c_fc.weight", {"model_type": "gpt2"}),
        ("layers.0.self_attn.qkv_proj.weight", config("phi3")),
        ("layers.0.mlp.experts.down_proj", config("qwen3_moe")),
    ],
)
def test_types_that_torch_does_not_hold_are_left_as_stored(make, name, settings):
    """Four bits an entry: no entry starts at a byte of its own, so nothing is cut out."""
    shape = [2, 6, 12] if "experts" in name else [12, 12]
    count = 2 * 6 * 12 if "experts" in name else 144
    header = f'{{"{name}": {{"dtype": "F4", "shape": {shape}, "data_offsets": [0, {count // 2}]}}}}'.encode()
    folder = make.folder("m", config=settings)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(count // 2))
    ((found, info),) = open_weights(folder).tensors.items()
    assert (found, info.dtype, list(info.shape)) == (name, "F4", shape)
