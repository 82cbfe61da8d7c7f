"""Token divergences against float64 twins, sequence estimates against exact enumeration."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.special import log_softmax
from scipy.stats import entropy
from tabular_policies import draw, log_conditionals, policy

from driftlab.errors import ShapeError, UsageError
from driftlab.responses import tabular
from driftlab.responses.policy import join, sequence_estimates, token_drift

NAMES = ("kl_new_to_base", "kl_base_to_new", "js", "entropy_new", "entropy_base", "log_new", "log_base")


def logits(seed, rows=7, width=101, spread=3.0):
    return spread * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def test_against_scipy_row_by_row():
    new, base, tokens = logits(1), logits(2), torch.arange(7)
    found = token_drift(new, base, tokens, temperature=0.7)
    p, q = (np.exp(log_softmax(x.double().numpy() / 0.7, axis=1)) for x in (new, base))
    np.testing.assert_allclose(found.kl_new_to_base, entropy(p, q, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.kl_base_to_new, entropy(q, p, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.js, jensenshannon(p, q, axis=1) ** 2, rtol=1e-12)
    np.testing.assert_allclose(found.entropy_new, entropy(p, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.entropy_base, entropy(q, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.log_new, np.log(p[np.arange(7), np.arange(7)]), rtol=1e-12)
    np.testing.assert_allclose(found.log_base, np.log(q[np.arange(7), np.arange(7)]), rtol=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 100, 101])
def test_chunked_equals_unchunked(chunk):
    new, base, tokens = logits(1), logits(2), torch.arange(7)
    whole, parts = token_drift(new, base, tokens), token_drift(new, base, tokens, chunk=chunk)
    for name in NAMES:
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-13, atol=1e-15)


def test_rows_do_not_see_each_other():
    new, base, tokens = logits(1), logits(2), torch.arange(7)
    whole = token_drift(new, base, tokens)
    split = join([token_drift(new[at], base[at], tokens[at]) for at in (slice(0, 3), slice(3, 7))])
    for name in NAMES:
        np.testing.assert_array_equal(getattr(split, name), getattr(whole, name))


def test_a_policy_does_not_differ_from_itself():
    new, tokens = logits(3), torch.arange(7)
    found = token_drift(new, new.clone(), tokens)
    assert not found.kl_new_to_base.any()
    assert not found.kl_base_to_new.any()
    assert not found.js.any()
    shifted = token_drift(new + 5.0, new, tokens)  # a constant is no difference
    np.testing.assert_allclose(shifted.js, 0, atol=1e-12)


def test_a_small_difference_is_not_rounding():
    new = logits(3).double()
    step = 1e-4 * torch.randn(new.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = token_drift(new + step, new, torch.arange(7))
    p = torch.softmax(new, 1)
    variance = (p * step**2).sum(1) - (p * step).sum(1) ** 2
    np.testing.assert_allclose(found.kl_new_to_base, 0.5 * variance, rtol=1e-3)  # second order of the KL
    np.testing.assert_allclose(found.js, variance / 8, rtol=1e-3)


def test_swapping_the_models_swaps_the_directions():
    a = token_drift(logits(1), logits(2), torch.arange(7))
    b = token_drift(logits(2), logits(1), torch.arange(7))
    np.testing.assert_array_equal(a.kl_new_to_base, b.kl_base_to_new)
    np.testing.assert_allclose(a.js, b.js, rtol=1e-13)


def test_what_cannot_be_said_costs_nothing_or_everything():
    inf = math.inf
    new, base = torch.tensor([[0.0, 0.0, -inf]]), torch.tensor([[0.0, -inf, -inf]])
    found = token_drift(new, base, torch.tensor([0]))
    assert found.kl_new_to_base[0] == inf
    assert found.kl_base_to_new[0] == pytest.approx(math.log(2))
    assert found.js[0] == pytest.approx(jensenshannon([0.5, 0.5], [1, 0]) ** 2)
    assert found.entropy_new[0] == pytest.approx(math.log(2))


def test_bad_input_is_named():
    with pytest.raises(ShapeError, match=r"expected \(N, V\) twice and \(N,\), found \(7, 101\), \(7, 90\) and \(7,\)"):
        token_drift(logits(1), logits(2, width=90), torch.arange(7))
    with pytest.raises(UsageError, match="expected a number above 0, found 0"):
        token_drift(logits(1), logits(2), torch.arange(7), temperature=0)
    ones = np.ones(5)
    with pytest.raises(ShapeError, match="lengths of at least 1 that sum to 5 tokens, found 4"):
        sequence_estimates(ones, ones, ones, np.array([2, 2]))
    with pytest.raises(ShapeError, match="lengths of at least 1"):
        sequence_estimates(ones, ones, ones, np.array([5, 0]))


def estimates(rng, new, base, ids, *, new_samples):
    drift = token_drift(
        torch.tensor(log_conditionals(new, ids)), torch.tensor(log_conditionals(base, ids)), torch.tensor(ids).flatten()
    )
    lengths = np.full(len(ids), ids.shape[1])
    if new_samples:
        return sequence_estimates(drift.log_new, drift.log_base, drift.kl_new_to_base, lengths)
    return sequence_estimates(drift.log_base, drift.log_new, drift.kl_base_to_new, lengths)


def everything(shape):
    return np.stack(np.unravel_index(np.arange(int(np.prod(shape))), shape), axis=1)


@pytest.mark.parametrize("new_samples", [True, False])
@pytest.mark.parametrize(("vocabulary", "length"), [(3, 2), (2, 3), (4, 3)])
def test_each_estimator_is_exactly_unbiased_for_its_sampler(vocabulary, length, new_samples):
    """The expectation, taken by listing all responses with their probabilities, is the enumerated KL."""
    rng = np.random.default_rng(vocabulary)
    new, base = (policy(rng, vocabulary, length) for _ in range(2))
    joint_new, joint_base = tabular.joint(new), tabular.joint(base)
    ids = everything(joint_new.shape)
    found = estimates(rng, new, base, ids, new_samples=new_samples)
    sampler, other = (joint_new, joint_base) if new_samples else (joint_base, joint_new)
    exact = tabular.kl(sampler, other)
    for name, values in found.items():
        assert (sampler.ravel() * values).sum() == pytest.approx(exact, rel=1e-12), name
    spread = {name: (sampler.ravel() * (values - exact) ** 2).sum() for name, values in found.items()}
    assert spread["rb"] <= spread["k1"]  # Rao-Blackwell
    assert (found["rb"] >= 0).all()
    assert (found["k3"] >= 0).all()
    wrong = (other.ravel() * found["rb"]).sum()
    assert abs(wrong - exact) > 1e-3  # the other policy's responses estimate something else


def test_intervals_cover_the_enumerated_kl():
    rng = np.random.default_rng(0)
    covered = {"rb": 0, "k1": 0, "k3": 0}
    trials, count = 400, 60
    for _ in range(trials):
        new, base = (policy(rng, 3, 3, spread=0.7) for _ in range(2))
        exact = tabular.kl(tabular.joint(new), tabular.joint(base))
        for name, values in estimates(rng, new, base, draw(rng, new, count), new_samples=True).items():
            se = values.std(ddof=1) / math.sqrt(count)
            covered[name] += abs(values.mean() - exact) <= 2.0 * se
    assert 0.92 <= covered["rb"] / trials <= 0.98
    assert 0.90 <= covered["k1"] / trials <= 0.98
    assert 0.85 <= covered["k3"] / trials <= 0.98  # skewed
