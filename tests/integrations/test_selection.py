"""Which matrices are measured."""

import pytest

from driftlab.errors import UsageError
from driftlab.integrations.selection import choose

SHAPES = {"model.embed_tokens.weight": (100, 8), "model.norm.weight": (8,), "lm_head.weight": (100, 8)}
for _layer in range(12):
    SHAPES |= {
        f"model.layers.{_layer}.self_attn.q_proj.weight": (8, 8),
        f"model.layers.{_layer}.self_attn.k_proj.weight": (4, 8),
        f"model.layers.{_layer}.mlp.up_proj.weight": (32, 8),
        f"model.layers.{_layer}.input_layernorm.weight": (8,),
    }


def test_the_default_is_two_matrices_of_three_layers():
    expected = [f"model.layers.{i}.{m}.weight" for i in (0, 6, 11) for m in ("mlp.up_proj", "self_attn.q_proj")]
    assert choose(SHAPES) == expected


def test_the_largest_leave_out_embedding_and_head():
    assert choose(SHAPES, largest=3) == [f"model.layers.{i}.mlp.up_proj.weight" for i in range(3)]


def test_every_nth_layer_and_the_last():
    assert len(choose(SHAPES, every_layer=5)) == 3 * 4  # layers 0, 5, 10, 11


def test_an_expression_takes_what_it_names():
    assert choose(SHAPES, include="embed") == ["model.embed_tokens.weight"]
    assert choose(SHAPES, include=r"layers\.1\..*q_proj") == ["model.layers.1.self_attn.q_proj.weight"]


def test_of_experts_one_stands_for_all():
    shapes = {f"layers.0.mlp.experts.{e}.up_proj.weight": (8, 8 + e) for e in range(4)}
    assert choose(shapes) == ["layers.0.mlp.experts.0.up_proj.weight"]


def test_a_model_without_layers():
    assert choose({f"w{i}.weight": (3, 3) for i in range(9)}) == [f"w{i}.weight" for i in range(6)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {
                "include": "(",
            },
            "not a regular expression",
        ),
        ({"include": "nothing"}, "found none of 51 trained weights"),
        ({"include": "q_proj", "largest": 2}, "expected one of"),
        ({"largest": -1}, "at least 1, found -1"),
    ],
)
def test_wrong_choices(options, words):
    with pytest.raises(UsageError, match=words):
        choose(SHAPES, **options)
