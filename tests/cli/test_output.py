"""The result on stdout, the rest on stderr; JSON that every reader takes."""

import json

import pandas as pd
import pytest

from driftlab_cli.output import Output

TABLE = pd.DataFrame(
    {"run": ["a", "long name"], "n": [1, 20], "nss": [1.2345678e-20, float("nan")], "top": [None, "x"]}
)


def test_a_table_is_aligned(capsys):
    Output().result(TABLE)
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "run         n        nss  top",
        "a           1  1.235e-20  -",
        "long name  20          -  x",
    ]
    assert captured.err == ""


def test_an_empty_table_says_so(capsys):
    Output().result(pd.DataFrame({"a": []}))
    assert capsys.readouterr().out == "(nothing)\n"


def test_json_keeps_every_digit_and_has_null_for_nan(capsys):
    Output(as_json=True).result(TABLE.assign(big=[float("inf"), 1 / 3]), extra={"notes": ["x"]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "rows": [
            {"run": "a", "n": 1, "nss": 1.2345678e-20, "top": None, "big": None},
            {"run": "long name", "n": 20, "nss": None, "top": "x", "big": 1 / 3},
        ],
        "notes": ["x"],
    }


def test_notes_and_warnings_go_to_stderr_unless_quiet(capsys):
    for quiet in (False, True):
        out = Output(quiet=quiet)
        out.note("a")
        out.warn("b")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a\nwarning: b\n")


def test_no_bar_without_a_terminal(capsys):
    with Output().progress(10, "svd", in_bytes=True) as advance:
        advance(5, "model.layers.0")
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_goes_to_stderr(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Output().progress(10, "svd", in_bytes=True) as advance:
        advance(10, "x" * 100)
    captured = capsys.readouterr()
    assert captured.out == ""
