"""Local workers: every unit comes back once, whatever happens to the workers."""

import multiprocessing
import os

import pytest
from toil import StillBorn, Toil

from driftlab.engines import ATTEMPTS, LocalEngine, Unit, choose_engine, heavy_first
from driftlab.errors import DataError, DriftlabError, UsageError


def run(engine, payloads, folder=""):
    units = [Unit(str(i), payload) for i, payload in enumerate(payloads)]
    return {done.unit.name: done for done in engine.run(units, Toil(str(folder)))}


@pytest.fixture(autouse=True)
def _no_orphans():
    yield
    assert multiprocessing.active_children() == []


def test_every_unit_comes_back_once_with_its_result():
    found = run(LocalEngine(2, 1), [("square", i) for i in range(7)])
    assert {int(name): done.result for name, done in found.items()} == {i: i**2 for i in range(7)}
    assert all(done.error == "" for done in found.values())


def test_a_killed_worker_costs_nothing_but_time(tmp_path):
    found = run(LocalEngine(2, 1), [("square", 1), ("die once", 2), ("square", 3), ("die once", 4)], tmp_path)
    assert [found[str(i)].result for i in range(4)] == [1, 4, 9, 16]


def test_a_unit_that_kills_its_workers_is_given_up_and_the_others_are_done():
    found = run(LocalEngine(1, 1), [("square", 1), ("die", 2), ("square", 3)])
    assert found["1"].error == f"its worker was lost {ATTEMPTS} times (SIGKILL)"
    assert (found["0"].result, found["2"].result) == (1, 9)


def test_workers_that_never_begin_end_the_run():
    units = [Unit(str(i), ("square", i)) for i in range(9)]
    with pytest.raises(DriftlabError, match=r"found \d+ workers lost in a row, the last SIGKILL. Try --workers 1"):
        list(LocalEngine(1, 1).run(units, StillBorn()))


def test_an_error_of_the_work_is_raised_as_it_is():
    with pytest.raises(DataError) as caught:
        run(LocalEngine(1, 1), [("refuse", 5)])
    assert (caught.value.message, caught.value.hint) == ("5: expected less.", "Ask for less.")
    with pytest.raises(RuntimeError, match=r"in a worker: KeyError: 'x'\nTraceback"):
        run(LocalEngine(1, 1), [("break", "x")])


def test_threads_are_pinned_in_the_workers_and_nowhere_else():
    before = dict(os.environ)
    found = run(LocalEngine(1, 3), [("threads", 0)])
    assert found["0"].result == "3"
    assert dict(os.environ) == before


def test_no_more_workers_than_units():
    found = run(LocalEngine(4, 1), [("pid", 0)])
    assert found["0"].result != os.getpid()
    assert list(LocalEngine(2).run([], Toil())) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "--workers: expected a number of at least 1, found 0."),
        ({"workers": 2, "threads": 0}, "--threads: expected a number of at least 1, found 0."),
        ({"name": "slurm"}, "Engine 'slurm' is unknown: expected one of local, ray."),
        ({"address": "auto"}, "--address: expected with --engine ray, found --engine local."),
    ],
)
def test_options_that_cannot_be_right(options, message):
    with pytest.raises(UsageError) as caught:
        choose_engine(**options)
    assert caught.value.message == message


def test_a_missing_ray_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"expected the package ray, found none. pip install 'driftlab\[ray\]'"):
        choose_engine("ray")


def test_one_worker_without_pinned_threads_is_this_process():
    assert choose_engine(workers=1) is None
    assert choose_engine(workers=1, threads=2).threads == 2


def test_equal_units_keep_their_order_behind_heavier_ones():
    units = [Unit(name, None, cost) for name, cost in (("a", 1), ("b", 2), ("c", 1), ("d", 2))]
    assert [unit.name for unit in heavy_first(units)] == ["b", "d", "a", "c"]
