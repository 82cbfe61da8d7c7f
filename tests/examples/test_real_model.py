"""The example on a real model: its command lines parse, its shell is sound, its questions come from the run's tasks."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from driftlab.training.config import load_file, load_preset, merge
from driftlab_cli.main import app

FOLDER = Path(__file__).parents[2] / "examples" / "real_model"
USAGE_ERROR = typer.BadParameter.__mro__[1]  # typer brings a click of its own
COMMANDS = ["train", "train", "svd", "policy", "mmd", "forgetting", "respond", "similarity"]
COMMANDS += ["respond", "respond", "similarity", "figures", "figures", "report"]


def command_lines(text: str) -> list[list[str]]:
    """Return the words after ``driftlab`` of every call in a script, with shell variables replaced."""
    values = {"threads": "2", "encoder": "encoder", "here": "here", "grpo": "grpo", "sdpo": "sdpo"}
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("driftlab ")]
    return [shlex.split(re.sub(r"\$(\w+)", lambda found: values[found[1]], line))[1:] for line in lines]


def parse(words: list[str]) -> None:
    """Parse one command line as the program would, without running it."""
    group = typer.main.get_command(app)
    with group.context_class(group, info_name="driftlab") as context:
        group.get_command(context, words[0]).make_context(words[0], list(words[1:]), parent=context)


CALLS = command_lines((FOLDER / "run.sh").read_text(encoding="utf-8"))


def test_every_room_is_called():
    assert [words[0] for words in CALLS] == COMMANDS


@pytest.mark.parametrize("words", CALLS, ids=lambda words: " ".join(words[:2]))
def test_commands_parse_and_may_be_given_again(words):
    try:
        parse(words)
    except USAGE_ERROR as error:
        pytest.fail(f"driftlab {shlex.join(words)}: {error.format_message()}")
    assert {"--resume", "--force"} & set(words)  # else a second call of the script stops there


def test_a_wrong_option_is_seen():
    with pytest.raises(USAGE_ERROR, match="--no-such"):
        parse(command_lines('driftlab svd runs \\\n  -o out --no-such "$here/x"')[0])


def test_the_shell_reads_it_and_stops_at_the_first_failure():
    assert subprocess.run(["bash", "-n", str(FOLDER / "run.sh")], capture_output=True, check=False).returncode == 0
    assert "set -euo pipefail" in (FOLDER / "run.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize("preset", ["grpo", "sdpo-cot"])
def test_settings_are_settings_and_checkpoints_are_those_named(preset):
    config = merge(load_preset(preset), load_file(FOLDER / "settings.toml"))
    ends, total = {}, 0
    for stage in config.stage_list():
        total += stage.steps
        ends[f"{total:06d}-{stage.name}@{stage.steps}"] = stage
    used = {found for words in CALLS for word in words for found in re.findall(r"checkpoints/(\S+)", word)}
    assert used == set(ends)


def test_questions_are_those_of_the_tasks_and_asked_ones_of_the_evaluation(tmp_path, monkeypatch):
    pytest.importorskip("reasoning_gym")
    spec = importlib.util.spec_from_file_location("questions", FOLDER / "questions.py")
    questions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(questions)
    run, out = tmp_path / "run", tmp_path / "questions"
    (run / "responses").mkdir(parents=True)
    config = load_file(FOLDER / "settings.toml") | {"seed": 0}
    (run / "run.json").write_text(json.dumps({"config": config}))
    rows = [
        {"id": f"{task}/{place}", "task": task, "prompt": f"{task} {place}", "response": "no", "reward": 0.0}
        for task in ("chain_sum", "products")
        for place in range(20)
    ]
    (run / "responses" / "base.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["questions.py", str(run), str(out)])
    questions.main()

    files = {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in out.iterdir()}
    assert {name: len(found) for name, found in files.items()} == {
        "chain_sum": 256, "calendar_arithmetic": 256, "products": 256, "letter_counting": 256, "asked": 32,
    }  # fmt: skip
    assert all("leap year" in row["prompt"] for row in files["calendar_arithmetic"])
    assert files["asked"] == [
        {name: row[name] for name in ("id", "task", "prompt")} for row in rows if int(row["id"].split("/")[1]) < 16
    ]
