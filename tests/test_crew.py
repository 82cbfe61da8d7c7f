"""The crew gives rows in order, bounds what is under way, and leaves torch's thread count as it was."""

import threading

import pytest
import torch

from driftlab.crew import Crew


@pytest.fixture
def cores():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def under_way(crew, numel, count=12):
    """Run jobs that wait for company and return (rows, the most that were under way at once)."""
    lock, now, most = threading.Lock(), 0, 0

    def job(i):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.02)
        with lock:
            now -= 1
        return {"row": i}

    rows = list(crew.run(((lambda i=i: job(i)) for i in range(count)), numel))
    return rows, most


@pytest.mark.parametrize(("numel", "hands"), [(0, 3), (100, 3), (1_000_000, 2), (2_000_000, 1), (10**9, 1)])
def test_rows_come_in_order_and_large_matrices_alone(cores, numel, hands):
    with Crew(torch.device("cpu")) as crew:
        rows, most = under_way(crew, numel)
        assert torch.get_num_threads() == cores
    assert rows == [{"row": i} for i in range(12)]
    assert most == hands


@pytest.mark.parametrize(("numel", "share"), [(100, 1), (1_000_000, 2)])
def test_hands_share_the_cores(numel, share):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with Crew(torch.device("cpu")) as crew:
            rows = list(crew.run(iter([lambda: {"threads": torch.get_num_threads()}] * 8), numel))
        assert rows == [{"threads": share}] * 8
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_another_device_is_worked_alone(cores):
    with Crew(torch.device("meta")) as crew:
        assert under_way(crew, 10)[1] == 1


def test_no_more_is_read_than_hands_can_hold(cores):
    """Jobs are made lazily: each carries a tensor."""
    made = []

    def jobs():
        for i in range(20):
            made.append(i)
            yield dict

    with Crew(torch.device("cpu")) as crew:
        next(iter(crew.run(jobs(), 10)))
        assert len(made) == 3


def test_an_error_passes_and_the_threads_come_back(cores):
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Crew(torch.device("cpu")) as crew:
        list(crew.run(iter([dict, broken, dict]), 10))
    assert torch.get_num_threads() == cores
