"""Threads side by side: order, bounds, errors, and that torch's thread count comes back."""

import threading

import pytest
import torch

from driftlab.crew import Crew

SMALL, LARGE = 10, 1 << 30


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("numel", [SMALL, LARGE])
def test_results_come_in_order(two_threads, numel):
    with Crew(torch.device("cpu")) as crew:
        assert list(crew.run(((lambda i=i: i * i) for i in range(7)), numel)) == [0, 1, 4, 9, 16, 25, 36]
    assert torch.get_num_threads() == 2


def test_small_jobs_meet_and_large_ones_do_not(two_threads):
    meet = threading.Barrier(2, timeout=20)
    with Crew(torch.device("cpu")) as crew:
        assert sorted(crew.run((meet.wait for _ in range(2)), SMALL)) == [0, 1]
        names = list(crew.run((threading.current_thread for _ in range(2)), LARGE))
    assert names == [threading.main_thread()] * 2


def test_jobs_are_taken_as_they_are_needed(two_threads):
    taken = []

    def jobs():
        for i in range(9):
            taken.append(i)
            yield int

    with Crew(torch.device("cpu")) as crew:
        results = crew.run(jobs(), SMALL)
        next(results)
        assert len(taken) == 3


def test_an_error_in_a_job_is_the_callers(two_threads):
    def fail():
        raise ValueError("broken")

    with Crew(torch.device("cpu")) as crew, pytest.raises(ValueError, match="broken"):
        list(crew.run((fail for _ in range(2)), SMALL))
    assert torch.get_num_threads() == 2
