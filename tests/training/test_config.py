"""Settings: presets, layers, and one sentence for each that cannot be right."""

import pytest

from driftlab.errors import UsageError
from driftlab.training.config import Stage, TrainConfig, load_file, load_preset, merge, parse_setting, preset_names


def test_every_preset_loads_and_says_what_it_is():
    assert preset_names() == ["grpo", "grpo-fork", "sdpo", "sdpo-cot", "sdpo-ema", "sft", "stable-sdpo"]
    configs = {name: merge(load_preset(name)) for name in preset_names()}
    assert all(config.name == name for name, config in configs.items())
    assert configs["grpo-fork"].advantage_scale == "none"
    assert (configs["grpo-fork"].clip_high, configs["grpo-fork"].dual_clip, configs["grpo-fork"].kl_weight) == (
        0.28, 3.0, 0.0,
    )  # fmt: skip
    assert (configs["sdpo"].teacher, configs["sdpo-ema"].ema_rate) == ("frozen", 0.05)
    assert (configs["sdpo-cot"].distill_cot, configs["sdpo-cot"].demo_cot) == (True, True)
    assert (configs["sdpo"].distill_cot, configs["sdpo"].demo_cot) == (False, False)
    assert configs["stable-sdpo"].teacher_gamma == pytest.approx(1 - 0.95**10, abs=5e-7)


def test_later_layers_win_and_files_are_toml(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('group = 2\nstages = "math:3"\nmask_strings = ["a", "b"]\n')
    config = merge(load_preset("sdpo"), load_file(file), parse_setting("group=6"), {"seed": 3})
    assert (config.method, config.group, config.seed) == ("sdpo", 6, 3)
    assert config.mask_strings == ("a", "b")
    assert config.stage_list() == [Stage("math", 3)]


def test_described_settings_can_be_given_back(tmp_path):
    config = merge(load_preset("stable-sdpo"), {"tasks": ["a=b.jsonl"], "seed": 4})
    file = tmp_path / "again.toml"
    file.write_text(config.describe())
    assert merge(load_file(file)) == config


def test_whole_numbers_pass_for_real_ones():
    assert merge({"lr": 1}).lr == 1


def test_weight_near_an_end_is_remarked():
    assert "near an end" in merge({"method": "sdpo", "jsd_beta": 0.01}).remarks()[0]
    assert "near an end" in merge({"method": "sdpo", "jsd_beta": 0.97}).remarks()[0]
    for beta in (0, 0.05, 0.5, 0.95, 1):
        assert merge({"method": "sdpo", "jsd_beta": beta}).remarks() == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group": 1}, "group: expected 2 or more for grpo, found 1"),
        ({"method": "sdpo", "group": 1}, "another response is the demonstration"),
        ({"temperature": 0}, "temperature: expected a number above 0, found 0"),
        ({"temperature": -1.0}, "temperature: expected a number above 0"),
        ({"temperature": float("nan")}, "temperature: expected a number above 0, found nan"),
        ({"teacher_k": 0}, "teacher_k: expected at least 1, found 0"),
        ({"teacher_gamma": 0.0}, "teacher_gamma: expected a number above 0"),
        ({"teacher_gamma": 1.2}, r"teacher_gamma: expected at most 1, found 1\.2"),
        ({"jsd_beta": 1.2}, "jsd_beta: expected at most 1"),
        ({"kl_estimator": "k1"}, "kl_estimator: expected one of k2, k3, found 'k1'"),
        ({"method": "ppo"}, "method: expected one of sft, grpo, sdpo, hybrid, found 'ppo'"),
        ({"dual_clip": 0.5}, "dual_clip"),
        ({"updates_per_batch": 3}, "divisor of the 16 prompts"),
        ({"stages": "math"}, "expected NAME:STEPS pairs"),
        ({"stages": "math:0"}, "found 'math:0'"),
        ({"stages": "math:5,math:5"}, "each domain once"),
        ({"frame_solution": "see this"}, r"expected a text with \{solution\} in it"),
        ({"speed": 3}, "Setting 'speed' is unknown"),
        ({"group": "eight"}, "group: expected a value of kind int, found 'eight'"),
        ({"group": True}, "group: expected a value of kind int"),
        ({"feedback": 1}, "feedback: expected a value of kind bool"),
        ({"mask_strings": [1]}, "mask_strings: expected a value of kind list of strings"),
    ],
)
def test_messages(settings, words):
    with pytest.raises(UsageError, match=words):
        merge(settings)


def test_messages_of_files_and_presets(tmp_path):
    with pytest.raises(UsageError, match="Preset 'ppo': expected one of grpo, grpo-fork, sdpo"):
        load_preset("ppo")
    with pytest.raises(UsageError, match="expected a readable TOML file"):
        load_file(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("group = = 3")
    with pytest.raises(UsageError, match="expected TOML, found"):
        load_file(tmp_path / "bad.toml")
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        parse_setting("group")


def test_defaults_are_valid():
    assert TrainConfig().stage_list() == [
        Stage("math", 50),
        Stage("science", 50),
        Stage("tooluse", 50),
        Stage("coding", 20),
    ]
