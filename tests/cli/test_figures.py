"""``driftlab figures`` draws what there is and says what there is not."""

import json

import pytest

from driftlab_analyses import FIGURES
from driftlab_cli.main import run


@pytest.fixture
def results(make):
    source = make.run("r", {"math@10": 10, "math@20": 20})
    arguments = ["svd", str(source), "-o", str(make.root / "out"), "-q", "--method", "exact", "--null", "none"]
    assert run(arguments) == 0
    return make.root / "out"


@pytest.fixture
def figures(make, capsys):
    def call(*arguments):
        capsys.readouterr()
        code = run(["figures", *map(str, arguments), "-o", str(make.root / "figs")])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_every_figure_in_three_forms(make, results, figures):
    code, out, err = figures(results)
    assert code == 0
    assert all("is not there" in line for line in err.splitlines())  # the tables of other commands
    names = ("layer_map", "parameter_drift")
    assert sorted(file.name for file in (make.root / "figs").iterdir()) == [
        f"{name}.{suffix}" for name in names for suffix in ("csv", "pdf", "png")
    ]
    for name in names:
        assert str(make.root / "figs" / f"{name}.png") in out
    assert (make.root / "figs/parameter_drift.pdf").read_bytes()[:5] == b"%PDF-"
    assert (make.root / "figs/parameter_drift.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("suffix", ["pdf", "png", "csv"])
def test_an_existing_figure_is_not_replaced_unasked(make, results, figures, suffix):
    file = make.root / "figs" / f"layer_map.{suffix}"
    file.parent.mkdir()
    file.write_text("mine")
    code, out, err = figures(results)
    assert (code, out) == (1, "")
    assert f"{file}: expected no such figure yet, found one. Give --force" in err
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]
    assert file.read_text() == "mine"
    assert figures(results, "--force")[0] == 0
    assert file.read_bytes() != b"mine"


def test_only(make, results, figures):
    assert figures(results, "--only", "layer_map")[0] == 0
    assert {file.stem for file in (make.root / "figs").iterdir()} == {"layer_map"}
    code, _, err = figures(results, "--only", "pie")
    assert code == 2
    assert f"Figure 'pie' is unknown: expected one of {', '.join(FIGURES)}." in err


def test_json(make, results, figures):
    content = json.loads(figures(results, "--json")[1])
    assert [row["figure"] for row in content["rows"]] == ["parameter_drift", "layer_map"]


def test_a_missing_table_is_said_and_the_rest_is_drawn(results, figures):
    (results / "spectral_summary.parquet").unlink()
    code, out, err = figures(results, "--only", "parameter_drift", "--only", "layer_map")
    assert code == 0
    assert "layer_map" in out
    assert err.startswith("parameter_drift: ")
    assert "table 'spectral_summary' is not there" in err


def test_nothing_to_draw_is_an_error(results, figures):
    for file in results.glob("*.parquet"):
        file.unlink()
    code, out, err = figures(results)
    assert (code, out) == (1, "")
    assert err.startswith("error: No figure could be drawn: ")


def test_a_folder_that_holds_no_results(make, figures):
    (make.root / "other").mkdir()
    code, _, err = figures(make.root / "other")
    assert code == 1
    assert "expected a results folder with manifest.json, found none" in err


def test_several_folders_each_get_their_own(make, results, figures):
    other = make.root / "deep" / "out"
    other.parent.mkdir()
    results.rename(other)
    source = make.run("s", {"math@10": 30})
    assert run(["svd", str(source), "-o", str(results), "-q", "--method", "exact", "--null", "none"]) == 0
    assert figures(results, other, "--only", "layer_map")[0] == 0
    assert {file.parent.name for file in (make.root / "figs").rglob("*.png")} == {f"{make.root.name}-out", "deep-out"}
    assert figures(results, results)[0] == 2
