"""LoRA adapters as PEFT writes them: the same drift as the merged weights, every variant that is not plain refused."""

import json
import math

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from driftlab.checkpoints import CheckpointSequence
from driftlab.checkpoints.lowrank import LowRank
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.weights import open_weights
from driftlab.errors import CheckpointError

Q = "model.layers.0.self_attn.q_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
EMBED = "model.embed_tokens.weight"


@pytest.fixture
def base(make):
    return make.folder("base", tensors=make.tensors(0, torch.float32))


@pytest.fixture
def adapter(make):
    """Write an adapter by hand: factors by module, settings over plain LoRA of rank 3 and alpha 8."""

    def write(tensors, path="adapter", suffix=".safetensors", **settings):
        folder = make.root / path
        folder.mkdir(parents=True, exist_ok=True)
        plain = {"peft_type": "LORA", "r": 3, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
        (folder / "adapter_config.json").write_text(json.dumps(plain | settings))
        named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
        if suffix == ".bin":
            torch.save(named, folder / "adapter_model.bin")
        else:
            save_file(named, folder / "adapter_model.safetensors")
        return folder

    return write


def factors(name, out, columns, rank=3, seed=0, sides=("lora_B", "lora_A")):
    generator = torch.Generator().manual_seed(seed)
    module = name.removesuffix(".weight")
    return {
        f"{module}.{sides[0]}.weight": torch.randn(out, rank, generator=generator),
        f"{module}.{sides[1]}.weight": torch.randn(rank, columns, generator=generator),
    }


def product(tensors, name, scale):
    module = name.removesuffix(".weight")
    B, A = tensors[f"{module}.lora_B.weight"], tensors[f"{module}.lora_A.weight"]
    return scale * (B.double() @ A.double())


def refused(folder, base):
    with pytest.raises(CheckpointError) as caught:
        open_weights(folder, open_weights(base))
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "scales"),
    [
        ({}, (8 / 3, 8 / 3)),
        ({"use_rslora": True}, (8 / math.sqrt(3), 8 / math.sqrt(3))),
        ({"alpha_pattern": {"down_proj": 5}}, (8 / 3, 5 / 3)),
        ({"alpha_pattern": {"layers.1.mlp.down_proj": 5, "roj": 7}}, (8 / 3, 5 / 3)),
        ({"alpha_pattern": {r".*0.*q_proj": 2}, "use_rslora": True}, (2 / math.sqrt(3), 8 / math.sqrt(3))),
    ],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_an_adapter_drifts_as_its_merged_weights_do(make, adapter, base, drift, settings, scales, suffix):
    tensors = factors(Q, 8, 12) | factors(DOWN, 12, 16, seed=1)
    before = make.tensors(0, torch.float64)
    merged = make.tensors(0, torch.float32)
    for name, scale in zip((Q, DOWN), scales, strict=True):
        merged[name] = merged[name].double() + product(tensors, name, scale)
    plain = make.folder("merged", tensors=before | merged)
    found, wanted = drift(base, adapter(tensors, suffix=suffix, **settings)), drift(base, plain)
    same = found["matrix"].isin([Q, DOWN])
    assert same.sum() == 2
    assert (found.loc[~same & (found["status"] == "ok"), "method"] == "identical").all()
    for column in ("rel_frobenius", "nss", "max_angle_left_deg", "max_angle_right_deg", "update_density"):
        pd.testing.assert_series_equal(found.loc[same, column], wanted.loc[same, column], rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # raised inside of peft
def test_peft_itself_agrees(make, base, drift):
    """Two layers of a real model, adapted and merged by PEFT with r != alpha and patterns of both."""
    peft = pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    source = make.root / "model"
    model.save_pretrained(source)
    settings = peft.LoraConfig(
        r=3, lora_alpha=8, target_modules=["q_proj", "down_proj", "k_proj", "embed_tokens"], use_rslora=True,
        rank_pattern={"layers.1.mlp.down_proj": 5}, alpha_pattern={"k_proj": 2}, modules_to_save=["lm_head"],
        task_type="CAUSAL_LM",
    )  # fmt: skip
    adapted = peft.get_peft_model(model, settings)
    for name, weight in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.save_pretrained(make.root / "step_5", save_embedding_layers=False)
    adapted.merge_and_unload().save_pretrained(make.root / "merged")
    found, wanted = drift(source, make.root / "step_5"), drift(source, make.root / "merged")
    assert list(found["matrix"]) == list(wanted["matrix"])
    assert (found["status"] == wanted["status"]).all()
    moved = found.loc[(found["status"] == "ok") & (found["method"] != "identical"), "matrix"]
    assert len(moved) == 6
    for column in ("rel_frobenius", "nss", "max_angle_left_deg", "update_density"):
        pd.testing.assert_series_equal(found[column], wanted[column], rtol=2e-4)


def test_fan_in_fan_out_and_embeddings_are_transposed(make, adapter, base):
    tensors = factors("model.layers.0.self_attn.q_proj", 12, 8)
    embedding = factors("model.embed_tokens", 12, 20, sides=("lora_embedding_B", "lora_embedding_A"), seed=2)
    embedding = {name.removesuffix(".weight"): tensor for name, tensor in embedding.items()}
    for folder, name in (
        (adapter(tensors, fan_in_fan_out=True), Q),
        (adapter(embedding, "embedding"), EMBED),
    ):
        update = open_weights(folder, open_weights(base)).tensors[name].update()
        assert (update.B.shape[1], update.scale) == (3, 8 / 3)
        given = tensors if name == Q else embedding
        B, A = (next(t for n, t in given.items() if f"_{side}" in n) for side in "BA")
        assert torch.allclose(update.B @ update.A, (B @ A).mT)


def test_whole_tensors_replace_those_of_the_base(make, adapter, base):
    new = torch.randn(20, 12)
    tensors = factors(Q, 8, 12) | {
        "model.embed_tokens.weight": new,
        "model.norm.modules_to_save.default.weight": torch.ones(12),
    }
    weights = open_weights(adapter(tensors, modules_to_save=["embed_tokens"]), open_weights(base))
    assert torch.equal(weights.tensors[EMBED].read(), new)
    assert torch.equal(weights.tensors["model.norm.weight"].read(), torch.ones(12))
    assert weights.notes == ["an adapter on the base: 1 low-rank updates, 2 tensors replaced"]


def test_an_update_of_a_left_out_tensor_still_counts(make, adapter, base, drift):
    names = {f"model.embed_tokens.lora_embedding_{side}": shape for side, shape in (("A", (3, 20)), ("B", (12, 3)))}
    tensors = {name: torch.zeros(shape) for name, shape in names.items()}
    tensors["model.embed_tokens.lora_embedding_A"][:, :5] = 1.0
    tensors["model.embed_tokens.lora_embedding_B"][:] = 1.0
    table = drift(base, adapter(tensors)).set_index("matrix")
    assert table.loc[EMBED, "update_density"] == 5 / 20
    tensors["model.embed_tokens.lora_embedding_A"][0, 0] = math.nan
    table = drift(base, adapter(tensors)).set_index("matrix")
    assert table.loc[EMBED, "reason"] == "checkpoint: expected finite values, found 1 NaN."


def test_a_fused_base_is_adapted_before_it_is_split(make, adapter):
    config = {"model_type": "phi3", "hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 1}
    name = "model.layers.0.self_attn.qkv_proj.weight"
    base = make.folder("base", tensors={name: torch.randn(20, 12)}, config=config)
    tensors = factors(name, 20, 12)
    weights = open_weights(adapter(tensors), open_weights(base))
    first = 0
    for part, rows in (("q", 12), ("k", 4), ("v", 4)):
        found = weights.tensors[f"model.layers.0.self_attn.{part}_proj.weight"]
        assert isinstance(found, LowRank)
        update = found.update()
        whole = product(tensors, name, 8 / 3)
        assert torch.allclose(update.scale * (update.B @ update.A).double(), whole[first : first + rows], atol=1e-5)
        first += rows


def test_a_turned_base_is_adapted_before_it_is_turned(make, adapter):
    name = "h.0.mlp.c_fc.weight"
    base = make.folder("base", tensors={f"transformer.{name}": torch.randn(12, 48)}, config={"model_type": "gpt2"})
    tensors = factors("transformer.h.0.mlp.c_fc", 48, 12)
    weights = open_weights(adapter(tensors, fan_in_fan_out=True), open_weights(base))
    update = weights.tensors[f"transformer.{name}"].update()
    B, A = tensors.values()
    assert torch.equal(update.B, B)
    assert torch.equal(update.A, A)


def test_several_adapters_along_a_run(make, adapter, base):
    for step in (5, 10):
        adapter(factors(Q, 8, 12, seed=step), f"out/checkpoint-{step}")
    sequence = CheckpointSequence.open([str(make.root / "out")], base)
    assert [c.label for _, c in sequence.checkpoints] == ["train@5", "train@10"]
    assert not any(c.error for _, c in sequence.checkpoints)


def test_what_an_adapter_leaves_is_read_once_for_all_checkpoints(make, adapter, base, drift, monkeypatch):
    read = []
    whole = TensorInfo.read
    monkeypatch.setattr(TensorInfo, "read", lambda info: read.append(info.name) or whole(info))
    steps = [adapter(factors(Q, 8, 12, seed=step), f"out/checkpoint-{step}") for step in (5, 10, 15)]
    table = drift(base, *steps)
    assert len(table) == 3 * len(make.tensors())
    assert (read.count(Q), read.count(DOWN), read.count(EMBED)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"use_dora": True}, "use_dora = true"),
        ({"peft_type": "LOHA"}, "peft_type 'LOHA'"),
        ({"peft_type": "ADALORA"}, "peft_type 'ADALORA'"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4', which changed the base as well"),
        ({"init_lora_weights": "olora"}, "init_lora_weights 'olora', which changed the base"),
        ({"layer_replication": [[0, 2]]}, "layer_replication = [[0, 2]]"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices = [1]"),
        ({"lora_bias": True}, "lora_bias = true"),
        ({"a_variant_of_next_year": 1}, "a_variant_of_next_year = 1"),
    ],
)
def test_other_variants_are_refused_by_name(adapter, base, settings, what):
    message = refused(adapter(factors(Q, 8, 12), **settings), base)
    assert f"expected a plain LoRA adapter, found {what}" in message
    assert "merge_and_unload" in message


def test_magnitudes_without_a_setting_are_refused(adapter, base):
    tensors = factors(Q, 8, 12) | {Q.replace("weight", "lora_magnitude_vector"): torch.ones(8)}
    assert "lora_magnitude_vector (DoRA" in refused(adapter(tensors), base)


@pytest.mark.parametrize(
    ("tensors", "settings", "what"),
    [
        (factors(Q, 8, 12, rank=4), {}, "has factors of rank 4, adapter_config.json says r = 3"),
        (factors(Q, 8, 12), {"lora_alpha": None}, "alpha = None"),
        (factors(Q, 8, 12), {"rank_pattern": {"q_proj": 2}}, "says r = 2"),
        (factors(Q, 12, 8), {}, "the update of model.layers.0.self_attn.q_proj has shape [12, 8], the base [8, 12]"),
        (factors("model.layers.9.q_proj", 8, 12), {}, "adapts model.layers.9.q_proj.weight, which the base does not"),
        (dict(list(factors(Q, 8, 12).items())[:1]), {}, "expected lora_A and lora_B of"),
        ({}, {}, "found no tensors"),
    ],
)
def test_factors_that_do_not_fit(adapter, base, tensors, settings, what):
    assert what in refused(adapter(tensors, **settings), base)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_settings_are_needed(adapter, base, content):
    folder = adapter(factors(Q, 8, 12))
    (folder / "adapter_config.json").unlink()
    if content is not None:
        (folder / "adapter_config.json").write_text(content)
    assert "adapter_config.json: expected the settings of an adapter, found none" in refused(folder, base)
