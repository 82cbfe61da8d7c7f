"""Limits: what they are read from, what they are compared with."""

import math

import pytest

from driftlab.errors import UsageError
from driftlab.live.alarms import WATCHED, check_limits, exceeded, numbers, read_limits


def row(status="ok", **values):
    return {"status": status, **values}


def test_numbers_are_means_and_the_largest_angle():
    rows = [
        row(nss=1.0, rel_frobenius=2.0, max_angle_left_deg=3.0, max_angle_right_deg=9.0),
        row(nss=3.0, rel_frobenius=math.nan, max_angle_left_deg=math.nan, max_angle_right_deg=4.0),
        row("failed", nss=100.0),
        row("skipped", nss=100.0),
    ]
    found = numbers(rows)
    assert (found["nss"], found["rel_frobenius"], found["max_angle_deg"]) == (2.0, 2.0, 9.0)
    assert (found["matrices"], found["failed"]) == (2, 1)
    assert math.isnan(found["mask_overlap"])


def test_numbers_of_nothing_are_missing():
    found = numbers([])
    assert (found["matrices"], found["failed"]) == (0, 0)
    assert math.isnan(found["nss"])
    assert math.isnan(found["max_angle_deg"])


def test_a_limit_itself_is_allowed_and_nan_exceeds_nothing():
    assert exceeded({"nss": 0.01}, {"nss": 0.01}) == []
    assert exceeded({"nss": math.nan}, {"nss": 0.01}) == []
    assert exceeded({}, {"kl": 0.01}) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [("nss", "NAME=NUMBER"), ("nss=much", "NAME=NUMBER"), ("size=1", "found 'size'"), ("nss=-1", "at least 0")],
)
def test_wrong_limits(text, words):
    with pytest.raises(UsageError, match=words):
        read_limits([text], "--alarm")


@pytest.mark.parametrize("limit", [math.nan, math.inf, True, "1"])
def test_limits_are_numbers(limit):
    with pytest.raises(UsageError, match="number of at least 0"):
        check_limits({"nss": limit}, WATCHED, "stop")
