"""``driftlab watch``, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from driftlab_cli.main import run


@pytest.fixture
def source(make):
    made = [make.folder("base"), make.folder("run/checkpoint-10", 10), make.folder("run/checkpoint-9", 9)]
    for folder in made:
        then = time.time() - 1000
        os.utime(folder / "model.safetensors", (then, then))
    return make.root / "run"


@pytest.fixture
def watch(make, source, capsys):
    def call(*options, out="out", idle=True):
        times = ("--poll", "0.01", "--until-idle", "0.01") if idle else ()
        arguments = [source, "--base", make.root / "base", "-o", make.root / out, *times, *options]
        code = run(["watch", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_one_line_a_checkpoint(watch):
    code, out, err = watch("--alarm", "nss=0")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith("run train@9: 4 matrices; nss 0.0")
    assert second.startswith("run train@10: 4 matrices; nss 0.0")
    assert " (null 0.0" in first
    assert "; ALARM nss 0.0" in first
    assert first.endswith(" is above 0")


def test_json_lines_and_resume(watch, make):
    code, out, _ = watch("--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(line["label"], line["failed"], line["alarms"]) for line in lines] == [
        ("train@9", 0, []),
        ("train@10", 0, []),
    ]
    assert watch("--json", "--resume") == (0, "", "")
    assert watch()[0] == 1
    manifest = json.loads((make.root / "out" / "manifest.json").read_text())
    assert manifest["commands"]["watch"]["waiting"] == {}


def test_what_was_never_whole_is_said_and_exit_code_3(watch, source):
    file = source / "checkpoint-10" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    code, out, err = watch()
    assert code == 3
    assert [line.split(":")[0] for line in out.splitlines()] == ["run train@9"]
    assert "warning: run train@10 was not measured: " in err


def test_the_report_is_kept_up_to_date(watch, make):
    assert watch("--report")[0] == 0
    page = (make.root / "out" / "report.html").read_text()
    assert "train@9" in page
    assert "train@10" in page


def test_figures_can_be_drawn_from_it(watch, make):
    watch()
    assert run(["figures", str(make.root / "out"), "-o", str(make.root / "figures"), "--only", "parameter_drift"]) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--alarm", "nss"), "NAME=NUMBER"), (("--poll", "0"), "--poll"), (("--device", "tpu"), "tpu")],
)
def test_wrong_usage(watch, options, words):
    code, out, err = watch(*options, idle=False)
    assert (code, out) == (2, "")
    assert words in err


def test_ctrl_c_ends_it_well(make, source):
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored by background jobs
    code += "from driftlab_cli.main import main; main()"
    command = [sys.executable, "-c", code, "watch", source]
    command += ["--base", make.root / "base", "-o", make.root / "out", "--poll", "0.05"]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines = [process.stdout.readline(), process.stdout.readline()]
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    assert [line.split(":")[0] for line in lines] == ["run train@9", "run train@10"]
    assert err == "stopped; --resume goes on\n"
    manifest = json.loads((make.root / "out" / "manifest.json").read_text())
    assert manifest["commands"]["watch"]["end"] is not None
