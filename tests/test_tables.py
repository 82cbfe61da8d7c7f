"""The summary equals the plain formulas, computed row by row."""

import math
import statistics

import numpy as np
import pandas as pd
import pytest

from driftlab.spectral import MEASURES
from driftlab.tables import HEADLINE, SPECTRAL, SUMMARY, headline, summarise


def row(matrix, nss, numel, density=0.5, **other):
    place = {"run": "SFT", "label": "math@10", "stage": "math", "step": 10, "order": 1, "role": "q_proj", "layer": 0}
    values = {"status": "ok", "reason": "", "nss": nss, "update_density": density, "update_sparsity": 1 - density}
    return place | values | {"matrix": matrix, "numel": numel} | other


def frame(*rows):
    return pd.DataFrame(list(rows), columns=SPECTRAL.names)


@pytest.fixture
def spectral():
    return frame(
        row("a", 1.0, 10, nss_error=0.1, nss_null=2.0),
        row("b", 2.0, 30, nss_error=0.3, nss_null=4.0, layer=1),
        row("c", 9.0, 60, nss_error=0.2, nss_null=6.0, layer=1, role="up_proj", density=0.0),
        row("embed", math.nan, 100, density=1.0, status="skipped", layer=None, role="embed_tokens"),
        row("broken", math.nan, 100, density=math.nan, status="failed", reason="NaN"),
        row("a", 5.0, 10, order=2, label="math@20", step=20),
    )


def lines(spectral, **where):
    summary = summarise(spectral).to_pandas()
    for column, value in where.items():
        summary = summary[summary[column] == value]
    return summary


def test_statistics_over_the_model(spectral):
    (line,) = lines(spectral, order=1, group_by="model", measure="nss").to_dict("records")
    values, weights = [1.0, 2.0, 9.0], [10, 30, 60]
    q25, median, q75 = statistics.quantiles(values, n=4, method="inclusive")
    expected = {"n": 3, "mean": sum(values) / 3, "median": median, "q25": q25, "q75": q75, "error": 0.2}
    expected["weighted_mean"] = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    expected |= {"null_mean": 4.0, "null_median": 4.0, "null_q25": 3.0, "null_q75": 5.0}
    assert {name: line[name] for name in expected} == pytest.approx(expected)
    assert (line["run"], line["label"], line["stage"], line["step"], line["group"]) == (
        "SFT",
        "math@10",
        "math",
        10,
        "all",
    )


def test_by_layer_and_role(spectral):
    layers = lines(spectral, order=1, group_by="layer", measure="nss").set_index("group")
    assert layers["mean"].to_dict() == {"0": 1.0, "1": 5.5}
    roles = lines(spectral, order=1, group_by="role", measure="nss").set_index("group")
    assert roles["mean"].to_dict() == {"q_proj": 1.5, "up_proj": 9.0}
    assert roles["n"].to_dict() == {"q_proj": 2, "up_proj": 1}


def test_density_is_pooled_over_every_compared_tensor(spectral):
    (matrices,) = lines(spectral, order=1, group_by="model", measure="update_density").to_dict("records")
    (pooled,) = lines(spectral, order=1, group_by="model", measure="pooled_update_density").to_dict("records")
    assert (matrices["n"], matrices["weighted_mean"]) == (3, pytest.approx(0.2))
    assert (pooled["n"], pooled["weighted_mean"]) == (4, pytest.approx((5 + 15 + 0 + 100) / 200))
    (sparse,) = lines(spectral, order=1, group_by="model", measure="pooled_update_sparsity").to_dict("records")
    assert sparse["weighted_mean"] == pytest.approx(1 - pooled["weighted_mean"])


def test_measures_that_were_not_taken_have_no_line(spectral):
    assert set(lines(spectral, group_by="model")["measure"]) == {
        "nss",
        "update_density",
        "update_sparsity",
        "pooled_update_density",
        "pooled_update_sparsity",
    }


def test_the_order_of_rows_changes_nothing_but_the_order(spectral):
    keys = ["order", "group_by", "group", "measure"]
    shuffled = spectral.sample(frac=1, random_state=1)
    first, second = (lines(table).sort_values(keys, ignore_index=True) for table in (spectral, shuffled))
    pd.testing.assert_frame_equal(first, second)


@pytest.mark.parametrize("steps", [(10, 20), (10, None), (None, None)])
def test_the_schema_does_not_depend_on_the_values(steps):
    table = frame(*(row("a", 1.0, 10, step=step, order=i) for i, step in enumerate(steps)))
    summary = summarise(table)
    assert summary.schema.remove_metadata() == SUMMARY
    assert list(dict.fromkeys(summary["step"].to_pylist())) == list(dict.fromkeys(steps))


def test_nothing_measured_is_an_empty_table_of_the_same_columns():
    summary = summarise(frame(row("a", math.nan, 10, density=math.nan, status="failed")))
    assert (summary.num_rows, summary.schema.remove_metadata()) == (0, SUMMARY)


def test_every_measure_can_be_summarised():
    values = {name: float(i) for i, name in enumerate(MEASURES)}
    found = lines(frame(row("a", 0.0, 7) | values), group_by="model").set_index("measure")["mean"]
    assert {name: found[name] for name in MEASURES} == values


# -- one line a checkpoint ----------------------------------------------------------------------------------------


def test_headline_counts_and_averages(spectral):
    assert headline(spectral).to_dict("records") == [
        {
            "run": "SFT",
            "label": "math@10",
            "matrices": 3,
            "failed": 1,
            "nss": 4.0,
            "update_density": pytest.approx(1 / 3),
        },
        {"run": "SFT", "label": "math@20", "matrices": 1, "failed": 0, "nss": 5.0, "update_density": 0.5},
    ]


def test_headline_keeps_the_order_of_the_table_and_checkpoints_without_numbers():
    table = frame(
        row("a", 2.0, 10, run="z", label="b"),
        row("a", 1.0, 10, run="z", label="a", order=2),
        row("a", math.nan, 10, run="y", label="b", status="failed"),
    )
    found = headline(table)
    assert list(zip(found["run"], found["label"], found["matrices"], strict=True)) == [
        ("z", "b", 1),
        ("z", "a", 1),
        ("y", "b", 0),
    ]
    assert np.isnan(found["nss"].iloc[2])


def test_headline_of_nothing_measured():
    found = headline(frame(row("a", math.nan, 10, density=math.nan, status="skipped")))
    assert list(found.columns) == ["run", "label", "matrices"]
    assert set(HEADLINE) <= set(MEASURES)
