"""Exit codes, where text goes, and what a user sees when something is wrong."""

import os
import subprocess
import sys

import pytest

from driftlab import __version__
from driftlab.errors import CheckpointError
from driftlab_cli import main
from driftlab_cli.main import run


def python(code, *arguments, **options):
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, **options)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from driftlab_cli.main import run; code = run(['--help'])\n"
        "heavy = {'torch', 'pandas', 'pyarrow', 'matplotlib', 'scipy', 'transformers', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'{code} {sorted(heavy)}' if code or heavy else 0)"
    )
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("ls", "svd", "figures"):
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("command", ["ls", "svd", "figures"])
def test_every_command_has_help_with_an_example(command, capsys):
    assert run([command, "-h"]) == 0
    assert f"driftlab {command} " in capsys.readouterr().out.split("Example", 1)[1]


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"driftlab {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["measure"], "measure"),
        (["svd"], "RUN"),
        (["svd", "x"], "--out"),
        (["ls", "x", "--no-such-option"], "--no-such-option"),
        (["svd", "x", "-o", "y", "--seed", "-1"], "--seed"),
        (["ls", "x", "--every", "0"], "--every"),
        (["svd", "x", "-o", "y", "--rank", "many"], "--rank"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, words, capsys):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err


def test_an_error_is_one_line_on_stderr(tmp_path, capsys):
    assert run(["ls", str(tmp_path / "gone")]) == 1
    captured = capsys.readouterr()
    expected = f"error: {tmp_path}/gone: expected a run folder or checkpoint, found nothing. Check the path.\n"
    assert (captured.out, captured.err) == ("", expected)


def test_a_bug_is_one_line_too(monkeypatch, tmp_path, capsys):
    def broken(*arguments, **options):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("driftlab.checkpoints.CheckpointSequence.open", broken)
    assert run(["ls", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "error: unexpected ZeroDivisionError: oh. Set DRIFTLAB_DEBUG=1 for the traceback.\n"
    )
    monkeypatch.setenv("DRIFTLAB_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["ls", str(tmp_path)])


def test_debug_shows_the_traceback_of_our_errors(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_DEBUG", "1")
    with pytest.raises(CheckpointError):
        run(["ls", str(tmp_path / "gone")])
    code = "from driftlab_cli.main import main; main()"
    done = python(code, "figures", "x", "-o", "y", "--only", "pie", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "UsageError: Figure 'pie' is unknown" in done.stderr


def test_ctrl_c_is_130_and_says_how_to_go_on(monkeypatch, tmp_path, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("driftlab.checkpoints.CheckpointSequence.open", interrupted)
    assert run(["ls", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted; what was finished is kept, and --resume continues there\n"


def test_a_real_sigint_during_the_scan(make):
    source = make.run("r", {"math@10": 10})
    code = (
        "import os, signal, sys, driftlab.results as r\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background starts with it ignored
        "whole = r.ResultsDir.write_part\n"
        "r.ResultsDir.write_part = lambda *a: (whole(*a), os.kill(os.getpid(), signal.SIGINT))\n"
        "from driftlab_cli.main import main; main()"
    )
    done = python(code, "svd", source, "-o", make.root / "out")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "interrupted; what was finished is kept, and --resume continues there\n"
    assert run(["svd", str(source), "-o", str(make.root / "out"), "--resume", "-q"]) == 0


def test_a_reader_that_goes_away_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from driftlab_cli.main import main; main()", "--help"]
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_listed_are_the_commands_there(capsys):
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(command.callback.__name__ in listed for command in main.app.registered_commands)
