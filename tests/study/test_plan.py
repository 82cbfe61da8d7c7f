import json
from typing import Any

import pytest

from driftlab.errors import UsageError
from driftlab.study.plan import load_profile, make_plan, profile_names


def study(**changes: Any) -> dict[str, Any]:
    runs = {"grpo": {"preset": "grpo"}, "ema": {"preset": "sdpo-ema"}}
    return {"seeds": [0, 1], "runs": runs, "train": {"prompts": 2}, **changes}


def test_both_controls_are_added_after_their_subjects() -> None:
    plan = make_plan(study())
    assert [(m.name, m.control_of) for m in plan.methods] == [
        ("grpo", ""), ("grpo-no-kl", "grpo"), ("ema", ""), ("ema-unbiased", "ema"),
    ]  # fmt: skip
    configs = {m.name: m.config(7) for m in plan.methods}
    assert configs["grpo"].kl_weight > 0
    assert configs["grpo-no-kl"].kl_weight == 0
    assert configs["ema"].style_bias
    assert not configs["ema-unbiased"].style_bias
    assert {c.seed for c in configs.values()} == {7}
    assert {c.prompts for c in configs.values()} == {2}
    assert configs["ema-unbiased"].teacher == "ema"


def test_a_control_that_the_study_names_is_not_added_twice() -> None:
    runs = {"ema": {"preset": "sdpo-ema"}, "mine": {"preset": "sdpo-ema", "style_bias": False, "control_of": "ema"}}
    plan = make_plan(study(runs=runs))
    assert [m.name for m in plan.methods] == ["ema", "mine"]
    assert plan.pairs() == [("mine", "ema")]


def test_a_real_model_has_no_style_bias_to_control() -> None:
    plan = make_plan(study(train={"model": "folder", "tasks": ["rg:gcd"], "stages": "gcd:2"}))
    assert [m.name for m in plan.methods] == ["grpo", "grpo-no-kl", "ema"]


def test_pairs_are_subjects_against_the_reference_and_controls_against_subjects() -> None:
    assert make_plan(study()).pairs() == [("ema", "grpo"), ("grpo-no-kl", "grpo"), ("ema-unbiased", "ema")]
    assert make_plan(study(reference="ema")).pairs()[0] == ("grpo", "ema")


@pytest.mark.parametrize("name", profile_names())
def test_profiles_are_whole_and_have_both_controls(name: str) -> None:
    plan = make_plan(load_profile(name))
    assert {m.control_of for m in plan.methods if m.control_of} >= {"grpo", "sdpo-ema"}
    assert plan.about
    assert json.loads(json.dumps(plan.to_dict()))["seeds"] == list(plan.seeds)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sedes": [1]}, "found 'sedes'"),
        ({"runs": {}}, r"at least one table \[runs.NAME\]"),
        ({"runs": {"grpo": 3}}, "runs.grpo: expected a table"),
        ({"runs": {"a": {"preset": "grpo", "control_of": "b"}}}, "control_of of a"),
        ({"runs": {"a": {"preset": "best"}}}, "Preset 'best'"),
        ({"runs": {"a": {"preset": "grpo", "gruop": 3}}}, "'gruop' is unknown"),
        ({"reference": "x"}, "reference: expected one of grpo, ema"),
        ({"seeds": []}, "seeds: expected a list"),
        ({"seeds": [True]}, "seeds: expected a list"),
        ({"seeds": [1, 1]}, "seeds: expected each once"),
        ({"measure": {"evry": 2}}, "measure: expected one of every"),
        ({"measure": {"every": "2"}}, "measure.every: expected a value like 1"),
        ({"train": {"temperature": 0.0}}, "temperature"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_plan(study(**changes))


def test_flags_win_over_the_file() -> None:
    plan = make_plan(study(), seeds=[5], train={"prompts": 9})
    assert plan.seeds == (5,)
    assert plan.methods[0].config(5).prompts == 9


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(UsageError, match="expected one of default, full, smoke"):
        load_profile("huge")
