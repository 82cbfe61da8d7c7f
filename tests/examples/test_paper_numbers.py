"""The published numbers are drawn as the paper's, and the two that its text states come out of the digitised ones."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "paper_numbers"


def test_both_figures_are_drawn_and_say_whose_numbers_they_are(tmp_path):
    subprocess.run([sys.executable, str(FOLDER / "draw.py"), str(tmp_path)], check=True, capture_output=True)
    for name in ("forgetting_curve", "continual"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        (source,) = set(pd.read_csv(tmp_path / f"{name}.csv")["source"])
        assert "of arXiv 2607.01763 (2026), about ±2 points" in source
        assert source.endswith("not measured here.")
    points = pd.read_csv(tmp_path / "forgetting_curve.csv").query("what == 'point'")
    gain = points[points["outcome"] == "gain"].set_index(["run", "task"])["y"]
    assert gain["SDPO 0 Math", "AIME"] == pytest.approx(72.49, abs=2)
    assert gain["SDPO 0 Math", "Math500"] == pytest.approx(14.14, abs=2)


def test_every_score_has_its_distance():
    scores, pairs = (pd.read_csv(FOLDER / f"{name}.csv") for name in ("scores", "distances"))
    known = set(zip(pairs["left"], pairs["right"], strict=True))
    for row in scores[(scores["figure"] == "figure5") & (scores["stage"] != scores["task"])].itertuples():
        assert (row.stage, row.task) in known
