"""What a scan will take: counts that are exact, a schedule that adds up, a time of the right kind."""

import math

import pytest
import torch

from driftlab.checkpoints import CheckpointSequence
from driftlab.planning.calibration import Rates, calibrate
from driftlab.planning.costs import EIGEN, Shape, cost, measured_shape
from driftlab.planning.forecast import Work, forecast, makespan, read_rate, work_of
from driftlab.spectral import Plan

Q = "model.layers.0.self_attn.q_proj.weight"
UNIT = Rates(1.0, 1.0, 1.0, 0.0, 0.0, 0.0)


def tracks(make, **options):
    paths = [make.folder("base"), *(make.folder(f"checkpoint-{i}", i) for i in (1, 2))]
    sequence = CheckpointSequence.open([str(path) for path in paths[1:]], paths[0])
    return {track.name: track for track in sequence.tracks(**options)}


def test_operations_of_a_shape_by_hand():
    shape = Shape.of(300, 200, Plan(mask_rank=10))
    assert (shape.d, shape.D, shape.r) == (200, 300, 10)
    assert shape.base_products == 2 * (2 * 200 * 200 * 300) + 2 * 200**3 + 2 * 10 * 200 * 300
    assert shape.tracked_products == 5 * 200 * 200 * 300 + 2 * 200**2 * 10 + 4 * 10 * 200 * 300
    assert shape.eigen == EIGEN * 200**3


def test_a_shape_and_its_transpose_cost_the_same():
    assert Shape.of(128, 512, Plan()) == Shape.of(512, 128, Plan())


@pytest.mark.parametrize(("null", "draws", "updates"), [("none", 1, 1), ("sign", 1, 2), ("permute", 3, 4)])
def test_a_track_costs_its_base_and_every_update(make, null, draws, updates):
    plan = Plan(null=null, null_draws=draws)
    track = tracks(make)[Q]
    shape = measured_shape(track, plan)
    base = shape.base_products + shape.eigen  # too small to be tracked: a checkpoint costs a base
    assert cost(track, plan) == base * (1 + 2 * updates)
    work = work_of(track, plan, UNIT, math.inf)
    assert work.seconds == work.seconds_exact == cost(track, plan)
    assert work.nbytes == 3 * 8 * 12 * 2


def test_a_tensor_that_is_left_out_costs_its_reading_and_one_excluded_nothing(make):
    found = tracks(make, exclude=["q_proj"])
    norm, out = (work_of(found[name], Plan(), UNIT, 10.0) for name in ("model.norm.weight", Q))
    assert norm.nbytes == 3 * 12 * 2
    assert norm.seconds == pytest.approx(norm.nbytes / 10.0)
    assert (out.nbytes, out.operations, out.seconds) == (0, 0, 0)


def test_the_slower_of_reading_and_computing_counts(make):
    track = tracks(make)[Q]
    assert work_of(track, Plan(), UNIT, 1e-9).seconds == pytest.approx(576 * 1e9)


@pytest.mark.parametrize(
    ("seconds", "workers", "expected"),
    [([4, 3, 3], 1, 10), ([4, 3, 3], 2, 6), ([4, 3, 3], 3, 4), ([4, 3, 3], 9, 4), ([], 2, 0), ([1] * 10, 4, 3)],
)
def test_the_schedule_by_hand(seconds, workers, expected):
    assert makespan(seconds, workers) == expected


def test_several_workers_never_beat_the_ideal_and_keep_within_grahams_bound():
    seconds = sorted((1 + (7 * i) % 11 for i in range(40)), reverse=True)
    for workers in (1, 2, 3, 8):
        ideal = max(sum(seconds) / workers, max(seconds))
        assert ideal <= makespan(seconds, workers) <= (4 / 3 - 1 / (3 * workers)) * ideal + max(seconds)


def test_the_table_for_one_worker_and_for_several():
    works = [Work("a", 10, 4e12, 4.0, 8.0, 100), Work("b", 20, 3e12, 3.0, 6.0, 300), Work("c", 5, 3e12, 3.0, 6.0, 200)]
    table = forecast(works, 2).set_index("workers")
    assert list(table["seconds"]) == [10.0, 6.0]
    assert list(table["seconds_if_exact"]) == [20.0, 12.0]
    assert list(table["gigabytes_memory"] * 1e9) == pytest.approx([300, 500])
    assert list(table["gigabytes"] * 1e9) == pytest.approx([35, 35])
    assert list(table["teraflop"]) == [10.0, 10.0]
    assert list(forecast(works, 1)["workers"]) == [1]


def test_a_faster_machine_takes_less_of_everything():
    shape, plan = Shape.of(256, 512, Plan()), Plan()
    rates = Rates(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert rates.faster(2.0).base(shape) == rates.base(shape) / 2
    assert rates.faster(2.0).checkpoint(shape, plan) == rates.checkpoint(shape, plan) / 2


def test_calibration_gives_rates_and_leaves_the_threads():
    threads = torch.get_num_threads()
    rates = calibrate(torch.device("cpu"), 1)
    assert torch.get_num_threads() == threads
    assert min(rates.product32, rates.product64, rates.eigen) > 0
    assert min(rates.base_entry, rates.update_entry, rates.update_square) >= 0


def test_the_read_rate_is_that_of_a_tensor_and_a_broken_file_gives_none(make):
    found = list(tracks(make).values())
    assert 0 < read_rate(found) < math.inf
    for file in make.root.glob("checkpoint-*/model.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    assert read_rate(found) == math.inf
    assert read_rate([]) == math.inf
