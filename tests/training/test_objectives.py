"""Objectives against the anchors, a slow float64 twin (per-token Python loops), autograd, and invariances."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.errors import ShapeError, UsageError
from driftlab.training import objectives as o

S = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log()
T = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()


def random_tables(rows=5, words=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(2, rows, words, generator=generator, dtype=torch.float64) * 2
    return tables[0], tables[1]


# Slow twins: plain sums over Python floats, in probability space.


def twin_kl(p, q):
    return math.fsum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True) if a > 0)


def twin_jsd(s, t, beta):
    if beta == 0:
        return twin_kl(t, s)
    if beta == 1:
        return twin_kl(s, t)
    m = [(1 - beta) * a + beta * b for a, b in zip(s, t, strict=True)]
    return (1 - beta) * twin_kl(s, m) + beta * twin_kl(t, m)


def twin_policy(logp, old, advantage, low, high, dual):
    ratio = math.exp(logp - old)
    loss = max(-ratio * advantage, -min(max(ratio, 1 - low), 1 + high) * advantage)
    return min(loss, -dual * advantage) if dual and advantage < 0 else loss


@pytest.mark.parametrize(
    ("beta", "value"),
    [(0, 0.092032850234), (0.1, 0.008184755843), (0.5, 0.021901178968), (0.9, 0.007694687676), (1, 0.085122825957)],
)
def test_jsd_anchors(beta, value):
    assert o.jsd(S, T, beta).item() == pytest.approx(value, abs=5e-13)


@pytest.mark.parametrize(("beta", "value"), [(0, 0.087176693572), (0.5, 0.021005925702), (1, 0.082282878505)])
def test_top_one_with_tail_anchors(beta, value):
    assert o.jsd(*o.top_k(S, T, 1), beta).item() == pytest.approx(value, abs=5e-13)


def test_top_two_renormalised_anchor_and_why_the_tail_is_the_default():
    assert o.jsd(*o.top_k(S, T, 2, tail=False), 0.5).item() == pytest.approx(0.014048183914, abs=5e-13)
    for table in o.top_k(S, T, 2):
        assert table.exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("beta", [0, 0.2, 0.5, 0.8, 1])
def test_jsd_equals_the_twin_and_so_does_its_gradient(beta):
    student, teacher = random_tables()
    student.requires_grad_(True)
    values = o.jsd(o.log_softmax(student), o.log_softmax(teacher), beta)
    s, t = student.detach().softmax(-1).tolist(), teacher.softmax(-1).tolist()
    expected = [twin_jsd(a, b, beta) for a, b in zip(s, t, strict=True)]
    assert values.tolist() == pytest.approx(expected, abs=1e-13)
    values.sum().backward()
    step = 1e-6
    for row, word in [(0, 0), (2, 5), (4, 8)]:
        moved = []
        for sign in (1, -1):
            logits = student.detach().clone()
            logits[row, word] += sign * step
            moved.append(twin_jsd(logits[row].softmax(-1).tolist(), t[row], beta))
        assert student.grad[row, word].item() == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.95), st.integers(1, 8))
def test_jsd_invariances(seed, beta, k):
    student, teacher = (o.log_softmax(table) for table in random_tables(seed=seed))
    full = o.jsd(student, teacher, beta)
    assert (full >= -1e-15).all()
    assert (o.jsd(student, student, beta).abs() < 1e-14).all()
    torch.testing.assert_close(o.jsd(teacher, student, 1 - beta), full, atol=1e-14, rtol=1e-12)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(o.jsd(student[:, order], teacher[:, order], beta), full, atol=1e-14, rtol=1e-12)
    # Merging words into a bucket can only lose divergence.
    assert (o.jsd(*o.top_k(student, teacher, k), beta) <= full + 1e-14).all()


@pytest.mark.parametrize("beta", [0, 0.3, 0.5, 1])
def test_sampled_jsd_is_unbiased_in_value_and_gradient(beta):
    student, teacher = random_tables(rows=1, words=6)
    student.requires_grad_(True)
    full = o.jsd(o.log_softmax(student), o.log_softmax(teacher), beta).sum()
    (gradient,) = torch.autograd.grad(full, student)
    log_student = o.log_softmax(student)[0]
    value, surrogate = o.jsd_sampled(log_student, o.log_softmax(teacher)[0], beta)
    chance = log_student.detach().exp()
    assert (chance * value).sum().item() == pytest.approx(full.item(), abs=1e-13)
    (sampled,) = torch.autograd.grad((chance * surrogate).sum(), student)
    torch.testing.assert_close(sampled, gradient, atol=1e-13, rtol=1e-10)


def test_gradient_almost_vanishes_near_an_end_and_not_at_it():
    norms = []
    for beta in (0.0, 0.001, 0.999, 1.0):
        student, teacher = random_tables()
        student.requires_grad_(True)
        o.jsd(o.log_softmax(student), o.log_softmax(teacher), beta).sum().backward()
        norms.append(student.grad.norm().item())
    assert norms[1] < 0.02 * norms[0]
    assert norms[2] < 0.02 * norms[3]


def test_policy_loss_equals_the_twin_and_so_does_its_gradient():
    generator = torch.Generator().manual_seed(1)
    logp = (torch.randn(60, generator=generator, dtype=torch.float64) - 2).requires_grad_(True)
    old = logp.detach() + torch.randn(60, generator=generator, dtype=torch.float64)
    advantage = torch.randn(60, generator=generator, dtype=torch.float64)
    loss, clipped = o.policy_loss(logp, old, advantage, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    expected = [
        twin_policy(*row, 0.2, 0.28, 3.0) for row in zip(logp.tolist(), old.tolist(), advantage.tolist(), strict=True)
    ]
    assert loss.tolist() == pytest.approx(expected, abs=1e-12)
    loss.sum().backward()
    ratio = (logp.detach() - old).exp()
    torch.testing.assert_close(logp.grad, torch.where(clipped, 0.0, -ratio * advantage), atol=1e-12, rtol=0)
    assert 0 < clipped.sum() < 60


def test_first_policy_step_is_the_plain_policy_gradient():
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss, clipped = o.policy_loss(logp, logp.detach(), torch.tensor([1.0, -0.5]))
    loss.sum().backward()
    assert logp.grad.tolist() == [-1.0, 0.5]
    assert not clipped.any()


def test_advantages_equal_the_twin():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.2, 0.9, 0.4, 0.1]], dtype=torch.float64)
    found = o.group_advantages(rewards, eps=1e-4)
    for row, values in zip(found.tolist(), rewards.tolist(), strict=True):
        mean = sum(values) / 4
        std = math.sqrt(sum((value - mean) ** 2 for value in values) / 3)
        assert row == pytest.approx([(value - mean) / (std + 1e-4) for value in values], abs=1e-12)
    only_mean = o.group_advantages(rewards, scale="none")
    torch.testing.assert_close(only_mean, rewards - rewards.mean(1, keepdim=True))
    shuffled = o.group_advantages(rewards[:, [2, 0, 3, 1]])
    torch.testing.assert_close(shuffled, found[:, [2, 0, 3, 1]])


def test_equal_rewards_give_exactly_zero():
    # The float32 mean of three times 0.1 is not 0.1: without care this reads 1e-9 / 1e-4.
    assert o.group_advantages(torch.full((2, 3), 0.1)).tolist() == [[0.0] * 3] * 2


def test_unknown_rewards_count_in_no_mean():
    nan = float("nan")
    found = o.group_advantages(torch.tensor([[1.0, nan, 0.0], [nan, nan, 1.0]]), scale="none")
    assert found.tolist() == [[0.5, 0.0, -0.5], [0.0, 0.0, 0.0]]


def test_kl_estimators_against_the_exact_divergence():
    student, teacher = (o.log_softmax(table)[0] for table in random_tables(rows=1))
    exact = twin_kl(student.exp().tolist(), teacher.exp().tolist())
    for name in ("k1", "k3"):
        estimate = (student.exp() * o.kl_estimate(student, teacher, name)).sum().item()
        assert estimate == pytest.approx(exact, abs=1e-13)
    k2 = (student.exp() * o.kl_estimate(student, teacher, "k2")).sum().item()
    assert k2 == pytest.approx(
        sum(p * d * d / 2 for p, d in zip(student.exp().tolist(), (teacher - student).tolist(), strict=True)), abs=1e-13
    )
    assert (o.kl_estimate(student, teacher, "k1") < 0).any()  # no estimate is clamped
    assert (o.kl_estimate(student, teacher, "k3") >= 0).all()


def test_k1_is_no_loss_because_its_gradient_has_mean_zero():
    logits = random_tables(rows=1)[0].requires_grad_(True)
    logp = o.log_softmax(logits)[0]
    (gradient,) = torch.autograd.grad(
        (logp.detach().exp() * o.kl_estimate(logp, logp.detach() - 1, "k1")).sum(), logits
    )
    assert gradient.abs().max() < 1e-15


def test_temperature_entropy_and_gather_equal_the_twin():
    logits, _ = random_tables()
    table = o.log_softmax(logits, 0.7)
    tokens = torch.tensor([0, 3, 8, 2, 1])
    for row in range(5):
        weights = [math.exp(value / 0.7) for value in logits[row].tolist()]
        chances = [weight / math.fsum(weights) for weight in weights]
        assert o.gather(table, tokens)[row].item() == pytest.approx(math.log(chances[tokens[row]]), abs=1e-12)
        assert o.entropy(table)[row].item() == pytest.approx(-math.fsum(c * math.log(c) for c in chances), abs=1e-12)
    assert o.log_softmax(logits.bfloat16()).dtype == torch.float32


def test_token_weights():
    masks = [torch.tensor([True, True, False]), torch.tensor([True]), torch.tensor([False])]
    assert torch.cat(o.token_weights(masks)).tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3, 0])
    # Every response weighs the same, the one without any token too: it dilutes the rest.
    assert torch.cat(o.token_weights(masks, "sequence")).tolist() == pytest.approx([1 / 6, 1 / 6, 0, 1 / 3, 0])
    assert torch.cat(o.token_weights([torch.zeros(3, dtype=torch.bool)])).tolist() == [0, 0, 0]


def test_importance_weight_is_bounded_and_carries_no_gradient():
    logp = torch.tensor([0.0, -3.0], requires_grad=True)
    weight = o.importance_weight(logp, torch.tensor([-3.0, 0.0]), 2.0)
    assert weight.tolist() == pytest.approx([2.0, math.exp(-3)])
    assert not weight.requires_grad


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: o.group_advantages(torch.ones(3, 1)), ShapeError, "group of 2 or more"),
        (lambda: o.group_advantages(torch.ones(3, 2), scale="max"), UsageError, "scale 'max'"),
        (lambda: o.log_softmax(torch.ones(1, 2), 0), UsageError, "above 0, found 0"),
        (lambda: o.jsd(S, T, 1.5), UsageError, "found 1.5"),
        (lambda: o.jsd_sampled(S[0], T[0], -1), UsageError, "found -1"),
        (lambda: o.jsd(S, T[:, :2]), ShapeError, "equal shapes"),
        (lambda: o.top_k(S, T, 3), UsageError, "expected 1 to 2"),
        (lambda: o.kl_estimate(S[0], T[0], "k4"), UsageError, "'k4'"),
        (lambda: o.policy_loss(S[0], S[0], S[0], dual_clip=1.0), UsageError, "dual_clip"),
        (lambda: o.token_weights([], "mean"), UsageError, "'mean'"),
    ],
)
def test_messages(call, kind, words):
    with pytest.raises(kind, match=words):
        call()
