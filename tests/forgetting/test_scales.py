"""Shares and percents are told apart or asked for, never guessed."""

import pytest
from score_support import long_rows, read

from driftlab.errors import DataError, UsageError
from driftlab.forgetting.gather import gather
from driftlab.forgetting.readers import read_scores
from driftlab.forgetting.scales import parse_scale


def with_score(task, score, label="C"):
    rows = long_rows()
    return [row | {"score": score} if (row["task"], row["label"]) == (task, label) else row for row in rows]


def score(found, task="O", label="C"):
    table = found.table
    return table.loc[(table["task"] == task) & (table["label"] == label), "score"].item()


def test_shares_become_percents_and_their_errors_too(tmp_path):
    found = read(tmp_path, [row | {"score": row["score"] / 100, "stderr": 0.02} for row in long_rows()])
    assert score(found) == 40
    assert set(found.table["stderr"]) == {2}
    assert set(found.table["scale_read"]) == {"fraction"}


def test_zero_is_on_every_scale(tmp_path):
    assert score(read(tmp_path, with_score("O", 0.0))) == 0


def test_a_small_score_among_percents_is_asked_for(tmp_path):
    rows = with_score("O", 0.4)
    with pytest.raises(DataError, match=r"found 0.4 \(O\) beside 95: shares mixed with percents, or percents near 0\?"):
        read(tmp_path, rows)
    assert score(read(tmp_path, rows, scale=parse_scale(["percent"]))) == 0.4
    assert score(read(tmp_path, rows, scale=parse_scale(["O=percent"]))) == 0.4


def test_one_task_of_another_scale_is_unified_where_told(tmp_path):
    rows = [row | {"score": row["score"] / 100} if row["task"] == "O" else row for row in long_rows()]
    with pytest.raises(DataError, match="shares mixed with percents"):
        read(tmp_path, rows)
    assert score(read(tmp_path, rows, scale=parse_scale(["O=fraction"]))) == 40


def test_two_files_of_two_scales(tmp_path):
    read(tmp_path, long_rows(run="r"), name="p.csv")
    shares = [row | {"score": row["score"] / 100} for row in long_rows(run="s")]
    read(tmp_path, shares, name="f.csv")
    sources = read_scores([tmp_path / "p.csv", tmp_path / "f.csv"])
    with pytest.raises(DataError, match=r"expected tables of one scale, found p.csv percent, f.csv fraction"):
        gather(sources)
    table = gather(sources, scale=parse_scale(["p.csv=percent", "f.csv=fraction"])).table
    assert table.groupby("run")["score"].sum().nunique() == 1


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("fraction", r"task A: expected a fraction, found 20"),
        ("O=fraction", r"task O: expected a fraction, found 50"),
    ],
)
def test_a_wrong_scale_is_found(tmp_path, scale, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, long_rows(), scale=parse_scale([scale]))


def test_scores_above_a_hundred_or_below_zero(tmp_path):
    for value in (120.0, -3.0):
        with pytest.raises(DataError, match=f"task O: expected a percent, found {value:g}"):
            read(tmp_path, with_score("O", value), scale=parse_scale(["percent"]))


def test_raw_stays_as_it_is_and_so_does_less_is_better(tmp_path):
    rows = with_score("O", 250.0)
    found = read(tmp_path, rows, scale=parse_scale(["O=raw"]))
    assert score(found) == 250
    assert set(found.table.query("task == 'O'")["scale"]) == {"raw"}
    assert score(read(tmp_path, rows, lower=["O"])) == 250


@pytest.mark.parametrize("option", ["half", "O=", "O=half", "raw"])
def test_options_that_are_none(option):
    with pytest.raises(UsageError, match="expected auto, fraction, percent"):
        parse_scale([option])


def test_names_that_are_not_there(tmp_path):
    with pytest.raises(UsageError, match="--scale X=percent: expected a task or a file of the scores"):
        read(tmp_path, long_rows(), scale=parse_scale(["X=percent"]))
    with pytest.raises(UsageError, match="--lower-is-better X: expected one of A, B, C, O"):
        read(tmp_path, long_rows(), lower=["X"])
