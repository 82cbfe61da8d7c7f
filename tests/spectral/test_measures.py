"""The registry of measures and the plan: names, ranges, defaults, caps and refusals."""

import math
import re

import pytest
import twin

from driftlab.errors import UsageError
from driftlab.spectral import MEASURES, PRESETS, Plan
from driftlab.spectral.measures import ESTIMATED, NO_DRIFT

PAIR = twin.pair(12, 31)


def test_every_measure_has_a_twin_and_the_other_way_round():
    assert set(twin.measures(*PAIR, k=3, r=6, f=0.1)) == set(MEASURES)


@pytest.mark.parametrize("name", MEASURES)
def test_entries_are_complete(name):
    measure = MEASURES[name]
    assert measure.name == name
    assert measure.unit in ("1", "degree", "count")
    assert (measure.unit == "degree") == name.endswith("_deg")
    assert all((measure.source, measure.summary, measure.low, measure.high, measure.no_drift))
    assert set(measure.nulls) <= {"sign", "permute"}


@pytest.mark.parametrize("name", MEASURES)
def test_no_drift_says_what_the_registry_says(name):
    stated = MEASURES[name].no_drift
    if name in NO_DRIFT:
        assert math.isnan(NO_DRIFT[name]) if stated == "-" else NO_DRIFT[name] == float(stated)
    else:
        assert name in ("gap_at_rank", "effective_rank_base", "effective_rank_new")  # the base's own numbers


@pytest.mark.parametrize("name", ["mask_update_iou", "mask_update_overlap", "low_mask_overlap"])
def test_the_sign_null_keeps_the_support(name):
    assert MEASURES[name].nulls == ("permute",)


@pytest.mark.parametrize("name", ["update_density", "rel_frobenius", "gap_at_rank", "effective_rank_base"])
def test_no_null_changes_the_size_or_the_base(name):
    assert MEASURES[name].nulls == ()


def test_estimated_measures_exist():
    assert set(ESTIMATED) <= set(MEASURES)


def test_defaults():
    plan = Plan()
    assert (plan.angle_rank, plan.mask_rank, plan.mask_fraction) == (None, 64, 0.1)
    assert plan.measures == tuple(MEASURES)


@pytest.mark.parametrize(
    ("d", "k", "r"),
    [
        (1, 1, 1),
        (2, 1, 1),
        (3, 1, 1),
        (4, 1, 2),
        (8, 2, 4),
        (192, 48, 64),
        (512, 128, 64),
        (576, 128, 64),
        (4096, 128, 64),
    ],
)
def test_default_ranks(d, k, r):
    assert Plan().ranks(d) == (k, r)


@pytest.mark.parametrize("d", [1, 2, 5, 64, 576])
@pytest.mark.parametrize("rank", [1, 7, 64, 512, 10**6])
def test_ranks_are_capped_where_an_angle_would_be_zero_by_construction(d, rank):
    k, r = Plan(angle_rank=rank, mask_rank=rank).ranks(d)
    assert k == r == min(rank, max(1, d // 2))
    assert k < d or d == 1


def test_presets_are_plans():
    plans = {name: Plan(**settings) for name, settings in PRESETS.items()}
    assert plans["2607.01763"].ranks(576) == (128, 64)
    assert plans["2607.01763"].mask_fraction == 0.1
    assert plans["2606.07082"].ranks(4096) == (512, 64)
    assert plans["2606.07082"].mask_fraction == 0.5


def test_wants_any():
    plan = Plan(measures=("nss", "mask_overlap"))
    assert plan.wants("nss")
    assert plan.wants("rel_spectral", "mask_overlap")
    assert not plan.wants("rel_spectral", "gap_at_rank")
    assert not plan.wants()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measures": ("nss", "nsz")}, "Measure 'nsz' is unknown. `driftlab svd --list-measures` shows them all."),
        ({"angle_rank": 0}, "The rank: expected at least 1, found 0."),
        ({"mask_rank": -3}, "The mask rank: expected at least 1, found -3."),
        ({"mask_fraction": 0.0}, "The mask fraction: expected a number between 0 and 1, found 0.0."),
        ({"mask_fraction": 1.0}, "The mask fraction: expected a number between 0 and 1, found 1.0."),
        ({"mask_fraction": math.nan}, "The mask fraction: expected a number between 0 and 1, found nan."),
        ({"method": "fast"}, "The method: expected auto or exact, found 'fast'."),
        ({"tolerance": 0.0}, "The tolerance: expected a number between 0 and 1, found 0.0."),
        ({"tolerance": math.nan}, "The tolerance: expected a number between 0 and 1, found nan."),
        ({"null": "swap"}, "The null: expected sign, permute or none, found 'swap'."),
        ({"null_draws": 0}, "The null draws: expected at least 1, found 0."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_right(options, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Plan(**options)


@pytest.mark.parametrize("method", ["auto", "exact"])
@pytest.mark.parametrize("null", ["sign", "permute", "none"])
def test_settings_that_can(method, null):
    plan = Plan(angle_rank=1, mask_rank=1, mask_fraction=1e-6, method=method, null=null, null_draws=3)
    assert plan == Plan(angle_rank=1, mask_rank=1, mask_fraction=1e-6, method=method, null=null, null_draws=3)
