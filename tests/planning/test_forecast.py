"""What a scan will take: counts that are exact, a schedule that adds up, a time of the right kind."""

import math

import pytest
import torch

from driftlab.checkpoints import CheckpointSequence
from driftlab.planning.calibration import calibrate, fit
from driftlab.planning.costs import EIGEN, Shape, cost, measured_shape
from driftlab.planning.forecast import Work, forecast, makespan, read_rate, work_of
from driftlab.planning.overheads import lines
from driftlab.planning.rates import Rates
from driftlab.planning.stopwatch import Stopwatch
from driftlab.results import ResultsDir
from driftlab.scan import scan
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
    works = [
        Work(*row)
        for row in (
            ("a", 10, 4e12, 4.0, 8.0, 100, 900),
            ("b", 20, 3e12, 3.0, 6.0, 300, 700),
            ("c", 5, 3e12, 3.0, 6.0, 200, 800),
        )
    ]
    table = forecast(works, 2).set_index("workers")
    assert list(table["seconds"]) == [10.0, 6.0]
    assert list(table["seconds_if_exact"]) == [20.0, 12.0]
    assert list(table["gigabytes_memory"] * 1e9) == pytest.approx([300, 500])
    assert list(table["gigabytes_memory_if_exact"] * 1e9) == pytest.approx([900, 1700])
    assert list(table["gigabytes"] * 1e9) == pytest.approx([35, 35])
    assert list(table["teraflop"]) == [10.0, 10.0]
    assert list(forecast(works, 1)["workers"]) == [1]
    later = forecast(works, 2, summary=0.5).set_index("workers")  # the driver's share at the end
    assert list(later["seconds"]) == [10.5, 6.5]


def test_a_faster_machine_takes_less_of_everything():
    shape, plan = Shape.of(256, 512, Plan()), Plan()
    rates = Rates(*range(1, 17))
    half = rates.faster(2.0)
    assert half.base(shape) == rates.base(shape) / 2
    assert half.checkpoint(shape, plan) == rates.checkpoint(shape, plan) / 2
    assert half.checkpoint_if_exact(shape, plan) == rates.checkpoint_if_exact(shape, plan) / 2
    assert (half.unit, half.row, half.line, half.skim_entry) == (7.0, 7.5, 8.0, 6.5)


def test_what_a_matrix_takes_by_hand():
    shape = Shape.of(200, 300, Plan(mask_rank=10))
    rates = Rates(2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0, 29.0, 31.0, 37.0)
    products = 3 * shape.base_products + 5 * shape.eigen
    assert rates.base(shape) == products + 7 * 60_000 + 17 * 40_000 + 19
    assert rates.tracked(shape) == 2 * shape.tracked_products + 11 * 60_000 + 13 * 40_000 + 23
    assert rates.exact(shape) == products + 29 * 60_000 + 31 * 40_000 + 37
    assert rates.checkpoint(shape, Plan()) == 2 * rates.tracked(shape)
    assert rates.checkpoint(shape, Plan(method="exact", null="none")) == rates.exact(shape)
    assert rates.checkpoint_if_exact(shape, Plan()) == 2 * (rates.tracked(shape) + rates.exact(shape))
    small = Shape.of(64, 64, Plan())  # too small to be tracked
    assert rates.checkpoint(small, Plan()) == rates.checkpoint_if_exact(small, Plan()) == 2 * rates.exact(small)


def test_a_unit_its_rows_and_what_is_skimmed_by_hand(make):
    found, plan = tracks(make), Plan()
    rates = Rates(0, 0, 0, 0, 0, 0, skim_entry=2.0, unit=100.0, row=10.0)
    norm, matrix = (work_of(found[name], plan, rates, math.inf) for name in ("model.norm.weight", Q))
    assert norm.seconds == norm.seconds_exact == 100 + 2 * 10 + 3 * 12 * 2.0
    assert matrix.seconds == matrix.seconds_exact == 100 + 2 * 10


def test_the_memory_of_a_matrix_by_hand(make):
    big = {Q: torch.zeros(200, 300, dtype=torch.bfloat16)}
    make.folder("base", tensors=big), make.folder("checkpoint-1", tensors=big)
    (track,) = CheckpointSequence.open([str(make.root / "checkpoint-1")], make.root / "base").tracks()
    work = work_of(track, Plan(), UNIT, math.inf)
    basis = (8 + 4 + 2) * 60_000 + (8 + 4) * 200 * (200 + 300)
    assert (work.memory, work.memory_exact) == (basis + 2 * 480_000 + 240_000, basis + 10 * 480_000 + 240_000)
    assert work_of(track, Plan(method="exact"), UNIT, math.inf).memory == work.memory_exact


# -- calibration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(3e-8, 5e-8, 1e-3), (0.0, 1e-7, 0.0), (2e-8, 0.0, 5e-3)])
def test_the_parts_are_found_where_the_times_are_made_of_them(parts):
    shapes = [Shape.of(*sides, Plan()) for sides in ((640, 2560), (640, 640), (192, 576), (64, 64))]
    timed = [(s, 0.5 + parts[0] * s.entries + parts[1] * s.d**2 + parts[2]) for s in shapes]
    assert fit(timed, lambda shape: 0.5) == pytest.approx(parts, abs=1e-12)


def test_no_part_is_negative_where_products_take_less_than_counted():
    shapes = [Shape.of(*sides, Plan()) for sides in ((640, 640), (64, 64))]
    assert fit([(shape, 1.0) for shape in shapes], lambda shape: 2.0) == (0.0, 0.0, 0.0)


def test_a_small_shape_weighs_as_much_as_a_large_one():
    small, large = Shape.of(64, 64, Plan()), Shape.of(640, 640, Plan())
    entry, square, fixed = fit([(small, 0.05), (large, 1.0), (large, 1.2)], lambda shape: 0.0)
    assert (entry + square) * 64**2 + fixed == pytest.approx(0.05, rel=1e-6)


def test_calibration_gives_rates_and_leaves_the_threads():
    threads = torch.get_num_threads()
    rates, crowding = calibrate(torch.device("cpu"), 1)
    assert torch.get_num_threads() == threads
    assert crowding >= 1
    assert min(rates.product32, rates.product64, rates.eigen, rates.line) > 0
    assert min(vars(rates).values()) >= 0
    assert rates.base(Shape.of(64, 64, Plan())) > 0
    assert rates.exact(Shape.of(64, 64, Plan())) > 0


@pytest.mark.parametrize(
    ("device", "threads", "expected", "crowding"),
    [("cpu", 1, 0.1, 2.5), ("cpu", 2, 0.25, 1.0)],
)
def test_a_thread_that_waits_its_turn_is_not_charged_for_it(monkeypatch, device, threads, expected, crowding):
    import time

    clock = {"wall": 0.0, "cpu": 0.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clock["cpu"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)

    def work():
        clock["wall"] += 0.25
        clock["cpu"] += 0.1

    watch = Stopwatch(torch.device(device))
    assert watch.seconds(work) == pytest.approx(expected)
    assert watch.crowding == pytest.approx(crowding)


def test_short_work_is_repeated_until_it_can_be_timed(monkeypatch):
    import time

    calls = [0]
    monkeypatch.setattr(time, "perf_counter", lambda: calls[0] * 1e-3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert Stopwatch(torch.device("cpu")).seconds(lambda: calls.__setitem__(0, calls[0] + 1)) == pytest.approx(1e-3)
    assert calls[0] == 1 + 4 + 16 + 3 * 64


def test_the_lines_of_a_summary_are_counted_as_it_counts_them(make):
    make.run("r", {"math@1": 1, "math@2": 2})
    sequence = CheckpointSequence.open([str(make.root / "r")])
    results = ResultsDir.create(make.root / "out", command="svd", config={})
    scan(sequence, Plan(method="exact"), results, device="cpu")
    summary = results.table("spectral_summary")
    made = summary[["run", "label", "group_by", "group"]].drop_duplicates()
    assert lines(sequence.tracks()) == len(made)


def test_the_read_rate_is_that_of_a_tensor_and_a_broken_file_gives_none(make):
    found = list(tracks(make).values())
    assert 0 < read_rate(found) < math.inf
    for file in make.root.glob("checkpoint-*/model.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    assert read_rate(found) == math.inf
    assert read_rate([]) == math.inf
