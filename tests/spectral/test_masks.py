"""Masks and their overlaps against sets of indices, scikit-learn, and the four bfloat16 cases."""

import math

import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import jaccard_score

from driftlab.errors import ShapeError
from driftlab.spectral.masks import (
    changed_mask,
    count_both,
    iou,
    largest_mask,
    largest_of,
    mask_size,
    random_iou,
    share_inside,
    smallest_mask,
)

HALF = st.floats(-4, 4, width=16)


def indices(mask):
    return set(mask.flatten().nonzero().flatten().tolist())


def bits(draw, n):
    return torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n)))


@st.composite
def two_masks(draw):
    n = draw(st.integers(1, 30))
    return bits(draw, n), bits(draw, n)


# --- choosing entries -------------------------------------------------------------------------------------------


@twin.EXAMPLES
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_counts_are_exact_and_ties_go_to_the_smaller_index(values, data):
    count = data.draw(st.integers(0, len(values)))
    X = torch.tensor(values, dtype=torch.float64)
    for make, largest in ((largest_mask, True), (smallest_mask, False)):
        mask = make(X, count)
        assert int(mask.sum()) == count
        assert indices(mask) == twin.extreme(values, count, largest=largest)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_any_stored_type(dtype):
    X = torch.tensor([[0.0, -3.0, 1.0], [2.0, 3.0, -1.0]]).to(dtype)
    assert indices(largest_mask(X, 3)) == {1, 3, 4}
    assert indices(smallest_mask(X, 2)) == {0, 2}


@pytest.mark.parametrize("make", [largest_mask, smallest_mask])
def test_the_flat_index_is_the_row_major_one_whatever_the_memory_layout(make):
    X = torch.tensor([[1.0, 1.0, 2.0], [1.0, 2.0, 1.0]])
    for view in (X.mT.contiguous().mT, X.repeat(2, 2)[:2, :3], torch.stack([X, X], 2)[..., 0]):
        assert not view.is_contiguous()
        assert torch.equal(make(view, 3), make(X, 3))
    ones = torch.ones(1, 3).expand(2, 3)
    assert indices(make(ones, 4)) == {0, 1, 2, 3}


def test_the_threshold_is_the_smallest_value_taken():
    X = torch.tensor([3.0, 1.0, 2.0, 1.0])
    for count, threshold in ((1, 3.0), (2, 2.0), (3, 1.0)):
        mask, smallest = largest_of(X, count)
        assert smallest == threshold == float(X[mask].min())
        assert torch.equal(mask, largest_mask(-X, count))


def test_negative_zero_is_zero():
    X = torch.tensor([-0.0, 0.0, -0.0, 1.0])
    assert indices(largest_mask(X, 2)) == {3, 0}
    assert indices(smallest_mask(X, 2)) == {0, 1}


def test_nothing_and_everything():
    X = torch.arange(6.0).reshape(2, 3)
    for make in (largest_mask, smallest_mask):
        assert not make(X, 0).any()
        assert make(X, 6).all()
        assert make(X, 6).shape == X.shape


def test_the_input_is_left_alone_and_gradients_do_not_matter():
    X = torch.tensor([3.0, -1.0, 2.0], requires_grad=True)
    assert indices(largest_mask(X, 2)) == {0, 2}
    assert X.tolist() == [3, -1, 2]


def test_the_default_device_of_the_process_does_not_matter():
    X = torch.tensor([3.0, -1.0, 2.0])
    with torch.device("meta"):
        assert indices(largest_mask(X, 2)) == {0, 2}


@pytest.mark.parametrize("make", [largest_mask, smallest_mask])
@pytest.mark.parametrize("count", [-1, 7])
def test_count_out_of_range(make, count):
    with pytest.raises(ShapeError, match=f"^count: expected 0 to 6, found {count}.$"):
        make(torch.zeros(2, 3), count)


@pytest.mark.parametrize(
    ("fraction", "numel", "size"),
    [(0.1, 25, 3), (0.1, 4, 0), (0.1, 5, 1), (0.5, 1, 1), (0.1, 331776, 33178), (0.5, 2**31 + 1, 2**30 + 1)],
)
def test_mask_size_rounds_half_up(fraction, numel, size):
    assert mask_size(fraction, numel) == size == twin.size(fraction, numel)


# --- overlaps ---------------------------------------------------------------------------------------------------


@twin.EXAMPLES
@given(two_masks())
def test_overlaps_equal_sets_and_scikit_learn(masks):
    left, right = masks
    a, b = indices(left), indices(right)
    assert count_both(left, right) == len(a & b)
    assert iou(left, right) == pytest.approx(twin.iou(a, b), nan_ok=True)
    assert share_inside(left, right) == pytest.approx(twin.divide(len(a & b), len(a)), nan_ok=True)
    if a | b:
        assert iou(left, right) == pytest.approx(jaccard_score(left.numpy(), right.numpy()))
        assert iou(left, right) == iou(right, left)


def test_overlap_of_empty_masks_is_undefined():
    none, some = torch.zeros(3, dtype=torch.bool), torch.tensor([True, False, False])
    assert math.isnan(iou(none, none))
    assert math.isnan(share_inside(none, some))
    assert iou(none, some) == share_inside(some, none) == 0
    assert iou(some, some) == 1


@pytest.mark.parametrize("measure", [iou, share_inside])
def test_masks_that_do_not_fit(measure):
    mask = torch.zeros(3, dtype=torch.bool)
    with pytest.raises(ShapeError) as caught:
        measure(mask, torch.zeros(3))
    assert str(caught.value) == (
        "Masks: expected two bool tensors of one shape, found torch.bool (3,) and torch.float32 (3,)."
    )
    with pytest.raises(ShapeError, match=r"found torch\.bool \(3,\) and torch\.bool \(1, 3\)\.$"):
        measure(mask, mask[None])


def identity(o, u, f):
    return o * u / (f + u - o * u)


def test_the_iou_identity_and_its_two_published_values():
    assert identity(0.1, 0.28, 0.1) == pytest.approx(0.0795, abs=5e-5)
    assert random_iou(0.1, 0.28) == pytest.approx(identity(0.1, 0.28, 0.1), rel=1e-15)
    assert random_iou(0.1, 1.0) == pytest.approx(0.1, rel=1e-15)
    assert random_iou(0.1, 0.0) == 0
    # f .1, u .28 and o .1 laid out on 1000 entries
    mask, moved = torch.zeros(1000, dtype=torch.bool), torch.zeros(1000, dtype=torch.bool)
    mask[:100] = True
    moved[72:352] = True
    assert share_inside(moved, mask) == pytest.approx(0.1)
    assert iou(mask, moved) == pytest.approx(0.0795, abs=5e-5)


@twin.EXAMPLES
@given(two_masks())
def test_the_iou_identity_holds_for_all_masks(masks):
    mask, moved = masks
    f, u, o = float(mask.double().mean()), float(moved.double().mean()), share_inside(moved, mask)
    if u and f:
        assert iou(mask, moved) == pytest.approx(identity(o, u, f), abs=1e-14)


def test_random_iou_is_what_random_updates_give():
    generator = torch.Generator().manual_seed(0)
    mask, moved = (torch.rand(400_000, generator=generator) < share for share in (0.1, 0.3))
    assert iou(mask, moved) == pytest.approx(random_iou(0.1, 0.3), rel=0.02)


# --- changed entries --------------------------------------------------------------------------------------------


def moved(a, b, dtype=torch.float32, other=None):
    left, right = torch.tensor([a], dtype=torch.float64).to(dtype), torch.tensor([b], dtype=torch.float64)
    return bool(changed_mask(left, right.to(other or dtype)))


@pytest.mark.parametrize(
    ("step", "rounded", "changed"),
    [(2**-9, 1.0, False), (2**-8, 1.0, False), (2**-8 + 2**-12, 1.0078125, True), (2**-7, 1.0078125, True)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_four_cases_at_one(step, rounded, changed, dtype):
    assert float(torch.tensor(1 + step, dtype=dtype).bfloat16()) == rounded == twin.bf16(1 + step)
    assert moved(1.0, 1 + step, dtype) is changed


@twin.EXAMPLES
@given(st.lists(HALF, min_size=1, max_size=20), st.sampled_from(list(twin.STORED)), st.data())
def test_changed_equals_the_definition(values, dtype, data):
    steps = data.draw(
        st.lists(st.sampled_from([0, 1e-4, 1e-3, 2e-3, 4e-3, 1e-2]), min_size=len(values), max_size=len(values))
    )
    left = torch.tensor(values, dtype=torch.float64)
    right = left * (1 + torch.tensor(steps, dtype=torch.float64))
    a, b = left.to(twin.STORED[dtype]), right.to(twin.STORED[dtype])
    assert indices(changed_mask(a, b)) == twin.changed(a, b)


def test_for_bfloat16_the_rule_means_that_bits_differ():
    patterns = torch.arange(0x7F7F, dtype=torch.int16).view(torch.bfloat16)  # every finite non-negative value
    assert bool(changed_mask(patterns[:-1], patterns[1:]).all())
    a, b = patterns[:-1].double(), patterns[1:].double()
    assert bool(((a - b).abs() > 1e-3 * torch.maximum(a.abs(), b.abs())).all())


def test_a_float16_pair_compares_as_stored():
    """The relative rule would call almost every step of one unit in the last place unchanged."""
    patterns = torch.arange(0x7BFF, dtype=torch.int16).view(torch.float16)  # every finite non-negative value
    assert bool(changed_mask(patterns[:-1], patterns[1:]).all())
    assert moved(1.0, 1 + 2**-10, torch.float16)


def test_pairs_of_two_types_are_compared_in_bfloat16():
    assert not moved(1.0, 1 + 2**-10, torch.float16, torch.float32)
    assert not moved(1 + 2**-9, 1.0, torch.float32, torch.bfloat16)
    assert moved(1.0, 1 + 2**-7, torch.bfloat16, torch.float32)


@pytest.mark.parametrize("dtype", list(twin.STORED.values()))
def test_negative_zero_is_no_change(dtype):
    assert not moved(0.0, -0.0, dtype)
    assert moved(1.0, -1.0, dtype)


def test_changes_need_one_shape():
    with pytest.raises(ShapeError, match=r"^Matrices: expected one shape, found \(2, 3\) and \(3, 2\)\.$"):
        changed_mask(torch.zeros(2, 3), torch.zeros(3, 2))


@pytest.mark.parametrize("shape", [(300, 700), (70_001,), (1024, 128)])
@pytest.mark.parametrize("kind", ["normal", "ties", "heavy", "sorted", "striped"])
@pytest.mark.parametrize("fraction", [0.0001, 0.1, 0.5, 0.9999])
def test_the_threshold_of_a_large_matrix_is_that_of_a_full_sort(
    shape: tuple[int, ...], kind: str, fraction: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator).abs()
    if kind == "ties":
        values = values.mul(4).round()
    elif kind == "heavy":
        values = values**20
    elif kind == "sorted":
        values = values.flatten().sort().values.reshape(shape)
    elif kind == "striped":  # what a sample taken at regular places can miss
        values.view(-1)[::2] = 1e6
    count = mask_size(fraction, values.numel())
    mask, threshold = largest_of(values, count)
    ordered = values.flatten().sort(descending=True).values
    assert threshold == float(ordered[count - 1])
    assert int(mask.sum()) == count
    assert torch.equal(values[mask].sort(descending=True).values, ordered[:count])
