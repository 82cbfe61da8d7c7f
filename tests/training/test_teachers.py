"""Teachers: direction, precision, timing, isolation and what a resume keeps."""

import pytest
import torch
from torch import nn

from driftlab.errors import UsageError
from driftlab.training import teachers as t


def student(value=1.0):
    model = nn.Linear(3, 2)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def fill(model, value):
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)


def first(teacher):
    return teacher.tensors[0].flatten()[0].item()


@pytest.mark.parametrize(("rate", "gamma"), [(0.005, 0.048890), (0.01, 0.095618), (0.02, 0.182927), (0.05, 0.401263)])
def test_matched_gamma_anchors(rate, gamma):
    assert t.matched_gamma(rate, 10) == pytest.approx(gamma, abs=5e-7)


def test_ema_moves_the_teacher_towards_the_student():
    model = student(0.0)
    teacher = t.make_teacher("ema", model, ema_rate=0.05)
    fill(model, 1.0)
    expected = 0.0
    for _ in range(20):
        teacher.after_iteration(model)
        expected = 0.95 * expected + 0.05
    assert first(teacher) == pytest.approx(expected, rel=1e-5)


def test_ema_with_rate_zero_is_the_frozen_teacher():
    model = student(0.0)
    teacher = t.make_teacher("ema", model, ema_rate=0.0)
    fill(model, 1.0)
    teacher.after_iteration(model)
    assert first(teacher) == 0.0


def test_shadow_is_float32_so_that_a_small_rate_moves_it():
    model = student(1.0).bfloat16()
    teacher = t.make_teacher("ema", model, ema_rate=0.005)
    fill(model, 1.0 + 2**-7)
    teacher.after_iteration(model)
    assert teacher.tensors[0].dtype == torch.float32
    assert first(teacher) == pytest.approx(1 + 0.005 * 2**-7, rel=1e-7)
    assert torch.tensor(first(teacher)).bfloat16().item() == 1.0  # in bfloat16 nothing would have moved


def test_stable_teacher_moves_every_k_iterations_only():
    model = student(0.0)
    teacher = t.make_teacher("stable", model, k=3, gamma=0.5)
    fill(model, 1.0)
    path = []
    for _ in range(7):
        teacher.after_iteration(model)
        path.append(first(teacher))
    assert path == [0, 0, 0.5, 0.5, 0.5, 0.75, 0.75]


def test_one_matched_restart_equals_k_ema_steps_of_a_student_that_stands_still():
    model = student(0.0)
    ema, stable = t.make_teacher("ema", model, ema_rate=0.02), t.StableTeacher(model, 10, t.matched_gamma(0.02, 10))
    fill(model, 1.0)
    for _ in range(10):
        ema.after_iteration(model)
        stable.after_iteration(model)
    assert first(stable) == pytest.approx(first(ema), rel=1e-5)


def test_hard_restart_is_exact():
    model = student(0.1)
    teacher = t.make_teacher("stable", model, k=1, gamma=1.0)
    fill(model, 1 / 3)
    teacher.after_iteration(model)
    assert torch.equal(teacher.tensors[0], model.weight)
    assert teacher.distance(model) == 0.0


def test_teacher_is_isolated_from_the_student():
    model = student(0.5)
    teacher = t.make_teacher("frozen", model)
    ((weight, net),) = teacher.mixture(model)
    assert weight == 1.0
    assert not net.training
    assert not any(parameter.requires_grad for parameter in net.parameters())
    fill(model, 2.0)
    teacher.after_iteration(model)
    assert first(teacher) == 0.5
    assert teacher.distance(model) == pytest.approx(0.75)


def test_untrained_weights_are_shared_and_ties_are_kept():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    shadow, tensors = t.shadow_of(model)
    assert shadow[0].weight is model[0].weight
    assert shadow[1].weight is not model[1].weight
    assert len(tensors) == 2
    tied = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    tied[1].weight = tied[0].weight
    shadow, tensors = t.shadow_of(tied)
    assert shadow[1].weight is shadow[0].weight
    assert len(tensors) == 1


def test_live_and_trust_region():
    model = student()
    live = t.make_teacher("live", model)
    assert live.mixture(model) == [(1.0, model)]
    assert live.distance(model) == 0.0
    trust = t.make_teacher("trust", model, trust_weight=0.3)
    weights = [weight for weight, _ in trust.mixture(model)]
    assert weights == pytest.approx([0.7, 0.3])
    assert trust.mixture(model)[1][1] is model


def test_state_round_trip_in_the_middle_of_an_interval():
    model = student(0.0)
    one, two = (t.make_teacher("stable", model, k=3, gamma=0.5) for _ in range(2))
    fill(model, 1.0)
    for _ in range(4):
        one.after_iteration(model)
    two.load(one.state())
    for teacher in (one, two):
        teacher.after_iteration(model)
        teacher.after_iteration(model)
    assert first(one) == first(two) == 0.75


def test_restart_anchors_and_counts_anew():
    model = student(0.0)
    teacher = t.make_teacher("stable", model, k=2, gamma=0.5)
    teacher.after_iteration(model)
    fill(model, 1.0)
    teacher.restart(model)
    assert (first(teacher), teacher.iterations) == (1.0, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "best"}, "'best'"),
        ({"name": "ema", "ema_rate": 1.5}, "found 1.5"),
        ({"name": "stable", "k": 0}, "teacher_k"),
        ({"name": "stable", "gamma": 0.0}, "teacher_gamma"),
        ({"name": "stable", "gamma": 1.01}, "found 1.01"),
        ({"name": "trust", "trust_weight": 1.0}, "trust_weight"),
    ],
)
def test_messages(arguments, words):
    with pytest.raises(UsageError, match=words):
        t.make_teacher(student=student(), **arguments)
