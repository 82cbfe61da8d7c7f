"""Every figure whose table is there; the same bytes for the same numbers."""

import pandas as pd
import pytest

from driftlab.errors import ResultsError, UsageError
from driftlab_analyses import FIGURES
from driftlab_analyses.draw import draw_all

SPECTRAL = {name for name, tables in FIGURES.items() if tables[0].startswith("spectral")}
"""The figures that the tables of ``driftlab svd`` are enough for."""


def test_drawn_twice_gives_the_same_bytes(two_runs, tmp_path):
    for folder in ("a", "b"):
        draw_all([two_runs.path], tmp_path / folder)
    first, second = (sorted((tmp_path / folder).iterdir()) for folder in ("a", "b"))
    assert [file.name for file in first] == [file.name for file in second]
    assert len(first) == 3 * len(SPECTRAL)
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
        assert b"/CreationDate" not in one.read_bytes()


def test_the_csv_holds_the_numbers_drawn(two_runs, tmp_path):
    from driftlab_analyses.parameter_drift import table

    draw_all([two_runs.path], tmp_path / "f", only=["parameter_drift"])
    found = pd.read_csv(tmp_path / "f/parameter_drift.csv")
    pd.testing.assert_frame_equal(found, table(two_runs), check_dtype=False)


def test_every_figure_has_a_module_with_the_two_functions():
    from importlib import import_module

    for name in FIGURES:
        module = import_module(f"driftlab_analyses.{name}")
        assert callable(module.table)
        assert callable(module.figure)
        assert module.__doc__


def test_what_cannot_be_drawn_is_reported(store, make_rows, tmp_path, nan):
    results = store(make_rows("a", ["x@1"], 1e-5), layer=None)
    drawn, missing = draw_all([results.path], tmp_path / "f")
    assert [name for name, _ in drawn] == ["parameter_drift"]
    assert [name for name, _ in missing if name in SPECTRAL] == ["layer_map"]
    assert {name for name, _ in missing} == {"layer_map"}


def test_existing_figures_are_refused_before_anything_is_drawn(two_runs, tmp_path):
    draw_all([two_runs.path], tmp_path / "f", only=["layer_map"])
    with pytest.raises(ResultsError, match="expected no such figure yet, found one"):
        draw_all([two_runs.path], tmp_path / "f")
    assert not list((tmp_path / "f").glob("parameter_drift*"))
    assert len(draw_all([two_runs.path], tmp_path / "f", force=True)[0]) == 2


def test_a_folder_twice(two_runs, tmp_path):
    with pytest.raises(UsageError, match="expected different ones, found one twice"):
        draw_all([two_runs.path, two_runs.path], tmp_path / "f")
