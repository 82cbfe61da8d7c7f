"""The sentences of the report say what verdicts and intervals say."""

import pandas as pd
import pytest

from driftlab.results import ResultsDir
from driftlab_analyses.report.findings import findings


@pytest.fixture
def results(tmp_path):
    return ResultsDir.create(tmp_path / "out", command="study", config={})


def contrast(number, left, verdict, low, high, p):
    return {"number": number, "left": left, "right": "grpo", "seeds": 3, "difference": (low + high) / 2, "low": low,
            "high": high, "p_value": p, "p_holm": p, "verdict": verdict}  # fmt: skip


def test_methods_that_stand_apart_and_those_that_do_not(results):
    rows = [
        contrast("ood", "sdpo-ema", "below", -9.0, -3.0, 0.01),
        contrast("ood", "sdpo", "not separated", -2.0, 3.0, 0.6),
        contrast("nss", "sdpo-ema", "not separated", 1.0, 3.0, 0.09),
        contrast("fwt", "sdpo", "above", 1.0, 2.0, 0.01),
    ]
    results.write_table("study_contrasts", pd.DataFrame(rows))
    found = {(one.kind, one.text) for one in findings(results)}
    assert found == {
        ("open", "spectral shift of the weights: sdpo-ema and grpo (+2 [+1, +3], p = 0.09 adjusted)"),
        ("separated", "score at the end on tasks never trained, %: sdpo-ema below grpo by 6 "
                      "(difference -6 [-9, -3], 3 seeds, p = 0.01)"),
        ("open", "score at the end on tasks never trained, %: sdpo and grpo"),
    }  # fmt: skip


def test_one_seed_says_nothing_of_methods(results):
    results.write_table("study_contrasts", pd.DataFrame([contrast("ood", "sdpo", "one seed", 0.0, 0.0, 1.0)]))
    assert [one.kind for one in findings(results)] == ["open"]


def test_a_collapse_raises_an_alarm_with_its_first_checkpoint(results):
    runs = {"ema0": ["none", "partial", "collapsed"], "ema1": ["none"] * 3, "grpo0": ["none"] * 3}
    rows = [
        {"run": run, "method": run[:-1], "task": "all", "order": order, "label": f"math@{order}", "verdict": verdict,
         "evidence": "half of it broken"}
        for run, verdicts in runs.items()
        for order, verdict in enumerate(verdicts, 1)
    ]  # fmt: skip
    results.write_table("artifacts", pd.DataFrame(rows))
    alarm, clean = findings(results)
    assert (alarm.kind, clean.kind) == ("alarm", "fact")
    assert alarm.text == "ema: 1 of 2 runs, first ema0 at math@2 (partial): half of it broken"
    assert clean.text.endswith(": grpo")


@pytest.mark.parametrize(("low", "kind"), [(0.1, "separated"), (-0.1, "open")])
def test_drift_beyond_what_success_required(results, low, kind):
    row = {"run": "grpo", "task": "all", "order": 1, "label": "math@1", "status": "ok", "kl_new_to_base": 0.5,
           "excess_drift": 0.3, "excess_drift_low": low, "excess_drift_high": 0.5}  # fmt: skip
    results.write_table("policy", pd.DataFrame([row]))
    (finding,) = findings(results)
    assert finding.kind == kind
    assert ("not beyond" in finding.text) == (kind == "open")
