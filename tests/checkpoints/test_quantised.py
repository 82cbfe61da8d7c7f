"""Quantised weights are multiplied by their scales to the bit, or refused by the name of their format."""

import math

import pytest
import torch
from safetensors.torch import save_file

from driftlab.checkpoints.weights import open_weights
from driftlab.errors import CheckpointError

NAME = "model.layers.0.mlp.down_proj.weight"
FP8 = torch.float8_e4m3fn


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def read(make):
    def read(tensors, **quantization):
        settings = {"quantization_config": quantization} if quantization else {}
        weights = open_weights(make.folder("m", tensors=tensors, config=settings))
        return {name: info.read() for name, info in weights.tensors.items()}, weights

    return read


def refused(read, tensors, **quantization):
    with pytest.raises(CheckpointError) as caught:
        read(tensors, **quantization)
    return str(caught.value)


def by_blocks(weight, scales, rows, cols):
    """The slow twin: entry by entry in float64."""
    out = torch.empty(weight.shape, dtype=torch.float64)
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            out[i, j] = weight[i, j].double() * scales[i // rows, j // cols].double()
    return out.float()


@pytest.mark.parametrize("name", ["_scale_inv", "_scale"])
@pytest.mark.parametrize(
    ("shape", "grid", "block"),
    [
        ((12, 20), (3, 4), (4, 5)),
        ((13, 22), (4, 5), (4, 5)),  # blocks that do not divide the shape
        ((200, 130), (2, 2), None),  # 128 x 128 unless told: not 100 x 65
        ((7, 9), (1, 1), None),
    ],
)
def test_a_scale_for_each_block(read, name, shape, grid, block):
    weight, scales = random(*shape).to(FP8), random(*grid, seed=1).abs() + 0.1
    settings = {"quant_method": "fp8", "weight_block_size": list(block)} if block else {"quant_method": "fp8"}
    found, weights = read({NAME: weight, f"{NAME}{name}": scales}, **settings)
    assert list(found) == [NAME]
    assert torch.equal(found[NAME], by_blocks(weight, scales, *(block or (128, 128))))
    assert weights.tensors[NAME].dtype == "F32"
    assert weights.notes == ["1 quantised tensors were multiplied by their scales"]


@pytest.mark.parametrize("scales", [torch.tensor(0.3), torch.tensor([0.3]), torch.tensor([[0.3]])])
def test_one_scale(read, scales):
    weight = random(5, 7).to(torch.float8_e5m2)
    found, _ = read({NAME: weight, f"{NAME}_scale": scales})
    assert torch.equal(found[NAME], weight.float() * 0.3)


@pytest.mark.parametrize("shape", [(5, 1), (5,)])
def test_a_scale_for_each_row(read, shape):
    weight, scales = random(5, 7).to(FP8), random(*shape, seed=1)
    found, _ = read({NAME: weight, f"{NAME}_scale": scales}, quant_method="fbgemm_fp8")
    assert torch.equal(found[NAME], by_blocks(weight, scales.reshape(5, 1), 1, 7))


def test_bf16_scales_and_exponents(read):
    weight = random(4, 6).to(FP8)
    found, _ = read({NAME: weight, f"{NAME}_scale": torch.tensor([[0.5]], dtype=torch.bfloat16)})
    assert torch.equal(found[NAME], weight.float() * 0.5)
    exponents = torch.tensor([[120, 130, 127], [126, 128, 127]], dtype=torch.uint8)
    told = {"quant_method": "mxfp8", "weight_block_size": [2, 2]}
    for stored in (exponents, exponents.view(torch.float8_e8m0fnu)):
        found, _ = read({NAME: weight, f"{NAME}_scale_inv": stored}, **told)
        assert torch.equal(found[NAME], by_blocks(weight, torch.exp2(exponents.float() - 127), 2, 2))


def test_stacks_of_experts_with_their_scales(make):
    """Each expert is read by itself, with its own share of the scales."""
    weight, scales = random(3, 8, 12).to(FP8), random(3, 2, 3, seed=1)
    settings = {
        "model_type": "qwen3_moe", "hidden_size": 12,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]},
    }  # fmt: skip
    stack = "model.layers.0.mlp.experts.gate_up_proj"
    weights = open_weights(make.folder("m", tensors={stack: weight, f"{stack}_scale_inv": scales}, config=settings))
    for i in range(3):
        wanted = by_blocks(weight[i], scales[i], 4, 4)
        for name, rows in (("gate_proj", slice(0, 4)), ("up_proj", slice(4, 8))):
            found = weights.tensors[f"model.layers.0.mlp.experts.{i}.{name}.weight"]
            assert torch.equal(found.read(), wanted[rows])


def test_compressed_tensors_agrees(read):
    """int8 and fp8 weights, quantised and dequantised by the library that writes them."""
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    from compressed_tensors.quantization import QuantizationArgs

    weight = random(6, 8)
    for kind, dtype in (("int", torch.int8), ("float", FP8)):
        args = QuantizationArgs(num_bits=8, type=kind, strategy="channel", symmetric=True)
        scales = weight.abs().amax(1, keepdim=True) / (127 if kind == "int" else 448)
        packed = forward.quantize(weight, scales, torch.zeros_like(scales), args, dtype=dtype)
        wanted = forward.dequantize(packed, scales, None, args, dtype=torch.float32)
        found, _ = read({NAME: packed, f"{NAME}_scale": scales}, quant_method="compressed-tensors")
        assert torch.equal(found[NAME], wanted)
        assert (found[NAME] - weight).abs().max() < 0.1 * weight.abs().max()


def test_scales_that_fit_no_block_are_refused(read):
    message = refused(read, {NAME: random(12, 20).to(FP8), f"{NAME}_scale": random(3, 4)}, quant_method="fp8")
    assert (
        f"the scales of {NAME} have shape [3, 4], expected one, one a row, or one for each block of 128x128" in message
    )
    assert "weight_block_size" in message


def test_fp8_without_scales_is_no_weight(make, drift):
    base = make.folder("base", tensors={NAME: random(6, 8)}, config={})
    table = drift(base, make.folder("m", tensors={NAME: random(6, 8).to(FP8)}, config={}))
    assert "its values are no weights without their scales" in table["reason"][0]


def test_an_fp8_checkpoint_drifts_as_its_dequantised_form(make, drift):
    weight, scales = random(12, 20).to(FP8), random(3, 4, seed=1).abs()
    base = make.folder("base", tensors={NAME: random(12, 20, seed=5)}, config={})
    told = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 5]}}
    packed = make.folder("packed", tensors={NAME: weight, f"{NAME}_scale_inv": scales}, config=told)
    plain = make.folder("plain", tensors={NAME: by_blocks(weight, scales, 4, 5)}, config={})
    assert drift(base, packed).equals(drift(base, plain))


# -- MXFP4 ----------------------------------------------------------------------------------------------------------


def packed(experts, out, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, out, columns // 32, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(118, 132, (experts, out, columns // 32), generator=generator, dtype=torch.uint8)
    return blocks, scales


def test_mxfp4_is_what_transformers_makes_of_it(make):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = packed(3, 10, 64)
    down_blocks, down_scales = packed(3, 64, 96, seed=1)
    prefix = "model.layers.0.mlp.experts."
    settings = {"model_type": "gpt_oss", "hidden_size": 64, "quantization_config": {"quant_method": "mxfp4"}}
    tensors = {
        f"{prefix}gate_up_proj_blocks": blocks, f"{prefix}gate_up_proj_scales": scales,
        f"{prefix}down_proj_blocks": down_blocks, f"{prefix}down_proj_scales": down_scales,
    }  # fmt: skip
    weights = open_weights(make.folder("m", tensors=tensors, config=settings))
    plain = {
        f"{prefix}gate_up_proj": convert_moe_packed_tensors(blocks, scales),
        f"{prefix}down_proj": convert_moe_packed_tensors(down_blocks, down_scales),
    }
    settings = {"model_type": "gpt_oss", "hidden_size": 64}
    wanted = open_weights(make.folder("plain", tensors=plain, config=settings))
    assert list(weights.tensors) == list(wanted.tensors)
    assert len(wanted.tensors) == 9
    for name, info in wanted.tensors.items():
        assert torch.equal(weights.tensors[name].read(), info.read()), name
    gate = weights.tensors[f"{prefix}1.gate_proj.weight"]
    assert (gate.shape, gate.dtype) == ((5, 64), "BF16")
    first = blocks[1, 0, 0, 0].item()
    table = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    value = table[first & 7] * (-1 if first & 8 else 1) * 2.0 ** (scales[1, 0, 0].item() - 127)
    assert gate.read()[0, 0].item() == value


def test_mxfp4_blocks_and_scales_that_do_not_fit(read):
    blocks, scales = packed(2, 5, 64)
    message = refused(read, {"l.experts.down_proj_blocks": blocks, "l.experts.down_proj_scales": scales[:, :4].clone()})
    assert "expected MXFP4 blocks [..., 16] with one scale each" in message


def test_an_exponent_of_255_is_not_a_number(read):
    blocks, scales = packed(1, 2, 32)
    scales[0, 0, 0] = 255
    found, _ = read({"l.experts.down_proj_blocks": blocks, "l.experts.down_proj_scales": scales})
    assert math.isnan(next(iter(found.values()))[0, 0].item())


# -- refused by name ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "what"),
    [
        ("qweight", "GPTQ or AWQ"),
        ("weight_packed", "compressed-tensors packed integers"),
        ("weight.absmax", "bitsandbytes"),
        ("weight.quant_state.bitsandbytes__nf4", "bitsandbytes"),
        ("SCB", "bitsandbytes"),
        ("W_q", "HQQ"),
        ("weight._data", "quanto"),
        ("codebooks", "AQLM"),
        ("weight_scale_2", "NVFP4"),
        ("bitmask", "compressed-tensors sparse weights"),
    ],
)
def test_packed_formats_are_refused_by_name(read, suffix, what):
    message = refused(read, {f"model.layers.0.mlp.down_proj.{suffix}": torch.ones(4, 3, dtype=torch.int32)})
    assert f"found quantised ones ({what}; model.layers.0.mlp.down_proj.{suffix})" in message
    assert "Give the bf16 checkpoint" in message


@pytest.mark.parametrize("method", ["bitnet", "eetq", "torchao", "something of next year"])
def test_an_unknown_method_with_integer_weights_is_refused_by_the_name_it_gives(read, method):
    tensors = {NAME: torch.ones(4, 3, dtype=torch.int8)}
    assert f"quantised ones ({method}; {NAME})" in refused(read, tensors, quant_method=method)


def test_zero_points_and_rotations_are_refused(read):
    tensors = {NAME: torch.ones(4, 3, dtype=torch.int8), f"{NAME}_scale": random(4, 1)}
    zero = {f"{NAME}_zero_point": torch.ones(4, 1, dtype=torch.int8)}
    assert "integers with zero points" in refused(read, tensors | zero)
    assert "rotated weights" in refused(read, tensors, quant_method="compressed-tensors", transform_config={"a": 1})
    sparse = {"format": "sparse-24-bitmask"}
    assert "sparse-24-bitmask" in refused(read, tensors, quant_method="compressed-tensors", sparsity_config=sparse)


def test_integer_tensors_that_are_no_weights_stay(make):
    folder = make.folder("m", config={"quantization_config": {"quant_method": "fp8"}})
    tensors = make.tensors() | {"model.position_ids": torch.arange(6).reshape(1, 6)}
    save_file(tensors, folder / "model.safetensors")
    assert open_weights(folder).tensors["model.position_ids"].dtype == "I64"


def test_scales_of_stacks_are_those_of_their_expert_not_of_rows(make):
    """As many experts as rows: a scale for each expert must not be taken for one a row."""
    weight, scales = random(4, 4, 6).to(FP8), random(4, 1, 1, seed=1)
    settings = {"model_type": "qwen3_moe", "hidden_size": 6, "quantization_config": {"quant_method": "fp8"}}
    stack = "model.layers.0.mlp.experts.gate_up_proj"
    weights = open_weights(make.folder("m", tensors={stack: weight, f"{stack}_scale": scales}, config=settings))
    found = weights.tensors["model.layers.0.mlp.experts.2.up_proj.weight"].read()
    assert torch.equal(found, weight[2, 2:].float() * scales[2])
    tensors = {stack: weight, f"{stack}_scale": scales.reshape(4)}
    with pytest.raises(CheckpointError, match=r"the scales of .* have shape \[4\]"):
        open_weights(make.folder("n", tensors=tensors, config=settings))
