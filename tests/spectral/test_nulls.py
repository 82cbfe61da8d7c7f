"""Nulls: what they keep, what they break, and that their randomness is their own."""

import pytest
import torch

from driftlab.errors import UsageError
from driftlab.spectral import Basis, Plan, measure
from driftlab.spectral.measures import MEASURES
from driftlab.spectral.nulls import null_update


@pytest.fixture
def update():
    D = torch.randn(30, 50, generator=torch.Generator().manual_seed(1))
    D[D.abs() < 0.5] = 0
    return D


def test_signs_keep_support_and_magnitudes(update):
    null = null_update(update, "sign", 0, "a")
    assert torch.equal(null.abs(), update.abs())
    changed = (null != update)[update != 0].float().mean()
    assert 0.4 < changed < 0.6


def test_permutation_keeps_the_entries_and_moves_them(update):
    null = null_update(update, "permute", 0, "a")
    assert torch.equal(null.flatten().sort().values, update.flatten().sort().values)
    assert not torch.equal(null != 0, update != 0)


@pytest.mark.parametrize("kind", ["sign", "permute"])
def test_a_draw_belongs_to_its_key_and_seed(update, kind):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = null_update(update, kind, 0, "a")
    assert torch.equal(one, null_update(update, kind, 0, "a"))
    assert not torch.equal(one, null_update(update, kind, 0, "b"))
    assert not torch.equal(one, null_update(update, kind, 1, "a"))
    assert torch.equal(torch.get_rng_state(), state)


def test_unknown_kind(update):
    with pytest.raises(UsageError, match="The null: expected sign or permute, found 'flip'"):
        null_update(update, "flip", 0, "a")


@pytest.mark.parametrize("kind", ["none", "sign", "permute"])
@pytest.mark.parametrize("side", [40, 160])  # decomposed, tracked
def test_each_measure_that_a_null_changes_has_one(kind, side):
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(side, side + 30, generator=generator).bfloat16()
    step = 0.01 * torch.randn(side, side + 30, generator=generator)
    drift = measure(Basis(base, Plan(null=kind)), (base.float() + step).bfloat16())
    assert set(drift.nulls) == {name for name, m in MEASURES.items() if kind in m.nulls}
    for name, value in drift.nulls.items():
        assert value == value, name
    if kind != "none":
        assert drift.nulls["nss"] == pytest.approx(drift.values["nss"], rel=0.5)
        assert drift.nulls["stable_rank_update"] > 5


def test_a_null_is_the_median_of_its_draws():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(40, 60, generator=generator)
    new = base + 1e-3 * torch.randn(40, 60, generator=generator)
    single = [measure(Basis(base, Plan(null_draws=1)), new, key).nulls["nss"] for key in ("k",)]
    many = measure(Basis(base, Plan(null_draws=5)), new, "k").nulls["nss"]
    assert many != single[0]
    assert many == pytest.approx(single[0], rel=0.5)


def test_draws_must_be_odd():
    with pytest.raises(UsageError, match="null draws: expected an odd number, found 2"):
        Plan(null_draws=2)
