"""The heat map: its numbers are golden, its marks are where they belong."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from driftlab.results import ResultsDir
from driftlab_analyses import FIGURES, domain_distance, domain_distance_reference
from driftlab_analyses.style import save, styled

PAIRS = pd.DataFrame(
    {
        "left": ["maths", "maths", "code"],
        "right": ["code", "tools", "tools"],
        "n_left": [40, 40, 30],
        "n_right": [30, 20, 20],
        "mmd2_u": [0.125, -0.001, 0.25],
        "ci_low": [0.1, -0.01, 0.2],
        "ci_high": [0.15, 0.008, 0.3],
        "p_holm": [0.01, 0.8, 0.01],
        "null_q95": [0.02, 0.02, 0.03],
        "at_noise_floor": [False, True, False],
        "gamma": [0.5, 0.5, 0.5],
        "encoder": ["e", "e", "e"],
    }
)
REFERENCE = pd.DataFrame(
    {
        "left": ["Maths", "Maths", "Code"],
        "right": ["Code", "Other", "Other"],
        "value": [9.5, 20.0, 3.0],
        "unit": "100 x squared MMD",
        "source": "somewhere",
    }
)


@pytest.fixture
def results(tmp_path):
    made = ResultsDir.create(tmp_path / "out", command="mmd", config={})
    made.write_table("mmd", PAIRS)
    made.write_table("mmd_reference", REFERENCE)
    return made


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_table_is_in_hundredths(results):
    golden = [
        ("maths", "code", 40, 30, 0.01, False, 0.5, "e", 12.5, 10.0, 15.0, 2.0),
        ("maths", "tools", 40, 20, 0.8, True, 0.5, "e", -0.1, -1.0, 0.8, 2.0),
        ("code", "tools", 30, 20, 0.01, False, 0.5, "e", 25.0, 20.0, 30.0, 3.0),
    ]
    table = domain_distance.table(results)
    assert list(table.columns)[-4:] == ["mmd2_u_x100", "ci_low_x100", "ci_high_x100", "null_q95_x100"]
    assert list(table.itertuples(index=False, name=None)) == golden


def test_the_figure_shows_every_value_twice_and_marks_the_noise_floor(results):
    with styled():
        figure = domain_distance.figure(domain_distance.table(results))
    assert texts(figure) == ["–", "12.50", "−0.10", "12.50", "–", "25.00", "−0.10", "25.00", "–"]
    hatched = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_hatch()]
    assert sorted(p.get_xy() for p in hatched) == [(0, 2), (2, 0)]
    caption = figure.get_supxlabel()
    for part in ("n: maths 40, code 30, tools 20", "Unbiased estimate", "γ = 0.5", "at the noise floor, 1 of 3 pairs"):
        assert part in caption.replace("\n", " ")


def test_a_value_that_rounds_to_zero_has_no_sign():
    with styled():
        figure = domain_distance.draw_heat_map(["a", "b"], np.array([[0.0, -0.001], [-0.001, 0.0]]), "x")
    assert texts(figure) == ["–", "0.00", "0.00", "–"]


def test_the_files_are_the_same_bytes_twice(results, tmp_path):
    table = domain_distance.table(results)
    for name in ("one", "two"):
        with styled():
            save(domain_distance.figure(table), table, tmp_path / name)
    for suffix in (".pdf", ".png", ".csv"):
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_the_reference_is_drawn_and_matched_without_case(results):
    table = domain_distance_reference.table(results)
    assert table["ours_x100"].isna().tolist() == [False, True, True]
    assert table["ours_x100"][0] == 12.5
    with styled():
        figure = domain_distance_reference.figure(table)
    assert texts(figure)[:3] == ["–", "9.50", "20.00"]
    assert "somewhere" in figure.get_supxlabel()


def test_the_figures_are_listed():
    assert FIGURES["domain_distance"] == ("mmd",)
    assert FIGURES["domain_distance_reference"] == ("mmd_reference",)
    assert FIGURES["domain_map"] == ("projection",)
