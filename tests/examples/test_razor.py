"""The example keeps its two promises for any seed: Q† is the least drift, imitation drifts further."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from driftlab.responses.tabular import joint, razor

SCRIPT = Path(__file__).parents[2] / "examples" / "razor.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("razor_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(5))
def test_the_target_succeeds_more_and_drifts_further_than_it_must(script, seed):
    base, right = script.world(seed)
    found = [razor(script.target(base, right, trust), joint(base), right) for trust in (0.2, 0.5, 0.9)]
    for one in found:
        assert one.drift == pytest.approx(one.required + one.excess, abs=1e-12)
        assert one.excess > 1e-5
        assert one.success > one.success_base
    assert found[0].drift < found[1].drift < found[2].drift


def test_a_teacher_that_copies_all_gives_the_demonstration(script):
    base, right = script.world(0)
    table = joint(script.shown(base, (1, 2, 3), 1.0))
    assert table[1, 2, 3] == pytest.approx(1.0)
    np.testing.assert_allclose(script.target(base, right, 0.0), joint(base), atol=1e-15)


def test_it_prints_its_table(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--seed", "3"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["trust", "success", "KL", "target", "kl(s‖p0)", "excess", "KL", "of", "Q†"]
    assert len(lines) == 10
