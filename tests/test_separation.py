"""The paired test against the null: its arithmetic, its words, and how often chance fools it."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest

from driftlab.multiplicity import holm
from driftlab.separation import compare, in_words, verdict
from driftlab.spectral import Basis, Plan, measure
from driftlab.spectral.measures import MEASURES
from driftlab.tables import SPECTRAL, summarise


def test_sign_test_counts_and_drops_ties():
    found = compare(np.array([1.0, 2, 3, 4, 5, 5]), np.array([0.5, 1, 1, 2, 7, 5]))
    assert (found.above, found.below) == (4, 1)
    assert found.p_value == binomtest(4, 5).pvalue
    assert found.ratio == np.median([2, 2, 3, 2, 5 / 7, 1])


def test_nothing_to_compare():
    found = compare(np.array([]), np.array([]))
    assert (found.above, found.below) == (0, 0)
    assert math.isnan(found.p_value)
    assert math.isnan(found.ratio)


def test_holm_by_hand():
    assert holm([0.02, math.nan, 0.01, 0.5]) == pytest.approx([0.04, math.nan, 0.03, 0.5], nan_ok=True)
    assert holm([0.6, 0.7]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("above", "below", "p", "expected"),
    [(9, 1, 0.01, "above"), (1, 9, 0.01, "below"), (9, 1, 0.2, "not separated"), (0, 0, math.nan, "no null")],
)
def test_verdicts(above, below, p, expected):
    assert verdict(above, below, p) == expected


def test_support_measures_are_held_to_the_level_of_a_random_update():
    row = dict.fromkeys(SPECTRAL.names)
    row |= {
        "run": "a",
        "label": "s@1",
        "stage": "s",
        "order": 1,
        "matrix": "w",
        "role": "w",
        "status": "ok",
        "numel": 9,
    }
    row |= {"mask_update_iou": 0.1, "mask_update_iou_random": 0.3, "low_mask_overlap": 0.5, "mask_fraction": 0.1}
    summary = summarise(pd.DataFrame([row] * 8)).to_pandas().set_index(["group_by", "measure"])
    assert summary.loc[("model", "mask_update_iou"), "null_median"] == 0.3
    assert summary.loc[("model", "mask_update_iou"), "verdict"] == "below"
    assert summary.loc[("model", "low_mask_overlap"), "verdict"] == "above"
    drawn = summarise(pd.DataFrame([row | {"mask_update_iou_null": 0.1}] * 8)).to_pandas()
    assert drawn.set_index(["group_by", "measure"]).loc[("model", "mask_update_iou"), "null_median"] == 0.1


def test_the_last_checkpoint_of_each_run_is_put_into_words():
    rows = {
        "run": ["a", "a"],
        "label": ["s@1", "s@2"],
        "order": [1, 2],
        "group_by": "model",
        "measure": "nss",
        "n": 20,
        "median": [1e-5, 2e-5],
        "null_median": [1e-5, 1e-5],
        "above": [10, 20],
        "below": [10, 0],
        "p_holm": [1.0, 1e-6],
        "verdict": ["not separated", "above"],
    }
    assert list(in_words(pd.DataFrame(rows))) == [
        "a s@2: nss is above its null (median 2e-05 against 1e-05; 20 of 20 matrices above, 0 below; p < 1e-4)"
    ]


# -- planted effects and chance ----------------------------------------------------------------------------------

SIDES = (36, 44)
CALLED = [name for name, m in MEASURES.items() if "sign" in m.nulls]


def calls(updates, seed):
    """Verdicts by measure over one matrix for each update function."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {name: ([], []) for name in CALLED}
    for i, update in enumerate(updates):
        W = torch.randn(*SIDES, generator=generator, dtype=torch.float64)
        drift = measure(Basis(W, Plan(method="exact", seed=seed)), W + update(W, generator), str(i))
        for name in CALLED:
            pairs[name][0].append(drift.values[name])
            pairs[name][1].append(drift.nulls[name])
    found = {name: compare(np.array(v), np.array(n)) for name, (v, n) in pairs.items()}
    adjusted = dict(zip(CALLED, holm([found[name].p_value for name in CALLED]), strict=True))
    return {name: verdict(found[name].above, found[name].below, adjusted[name]) for name in CALLED}


def rotation(W, generator):
    """Turn the row space by one degree in a random plane: the spectrum does not move at all."""
    plane, _ = torch.linalg.qr(torch.randn(W.shape[0], 2, generator=generator, dtype=torch.float64))
    angle = math.radians(1)
    turn = torch.tensor([[math.cos(angle) - 1, -math.sin(angle)], [math.sin(angle), math.cos(angle) - 1]]).double()
    return plane @ turn @ plane.mT @ W


def scaling(W, generator):
    return 1e-3 * W


def random(W, generator):
    return 1e-3 * torch.randn(W.shape, generator=generator, dtype=torch.float64)


def test_a_planted_rotation_is_separated():
    found = calls([rotation] * 16, 0)
    assert found["nss"] == "below"
    assert found["stable_rank_update"] == "below"


def test_a_planted_scaling_is_separated():
    found = calls([scaling] * 16, 0)
    assert found["nss"] == "above"
    assert found["max_angle_left_deg"] == "below"


@pytest.mark.slow
def test_a_random_update_is_called_separated_at_most_once_in_twenty():
    false = sum(any(v in ("above", "below") for v in calls([random] * 21, seed).values()) for seed in range(200))
    assert false <= 10
