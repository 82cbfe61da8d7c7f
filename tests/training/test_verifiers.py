"""Verifiers: right, wrong, malformed, and the sandbox."""

import pytest

from driftlab.errors import UsageError
from driftlab.training import sandbox
from driftlab.training.verifiers import final_answer, get_verifier

CALL = 'Thought: weather\nAction: get_weather\nAction Input: {"city": "Oslo", "days": 2}'


@pytest.mark.parametrize(
    ("kind", "response", "answer", "score"),
    [
        ("exact", "<answer>Paris</answer>", "paris", 1),
        ("exact", "Paris is nice", "Paris", 0),
        ("exact", "<think>London</think>Paris", "Paris", 1),
        ("numeric", "7 + 8 = 15", "15", 1),
        ("numeric", "15.0000001", "15", 1),
        ("numeric", "It is 1,250.50 now", "1250.5", 1),
        ("numeric", "-3", "3", 0),
        ("numeric", "no number", "3", 0),
        ("numeric", "", "3", 0),
        ("boxed", r"first \boxed{3} then \boxed{4}", "4", 1),
        ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1),
        ("boxed", r"\boxed{4.0}", "4", 1),
        ("boxed", r"\boxed{4", "4", 0),
        ("boxed", "4", "4", 0),
        ("choice", "<answer>b</answer>", "B", 1),
        ("choice", "The answer is (C).", "C", 1),
        ("choice", "ABC", "C", 0),
        ("choice", "", "C", 0),
        ("tool", CALL, 'Action: get_weather\nAction Input: {"days": 2, "city": "Oslo"}', 1),
        ("tool", CALL, 'Action: get_weather\nAction Input: {"days": 3, "city": "Oslo"}', 0),
        ("tool", CALL + "\n" + CALL, CALL, 0),
        ("tool", "Action: get_weather\nAction Input: {city}", CALL, 0),
        ("tool", "no call", CALL, 0),
        ("regex", "<answer>42 km</answer>", r"\d+ ?km", 1),
        ("regex", "42 km away", r"\d+ ?km", 0),
    ],
)
def test_verifiers(kind, response, answer, score):
    verdict = get_verifier(kind)(response, answer)
    assert (verdict.score, verdict.ok) == (float(score), bool(score))


def test_formulas_are_compared_where_math_verify_is_installed():
    pytest.importorskip("math_verify")
    boxed = get_verifier("boxed")
    assert boxed(r"\boxed{0.5}", r"\frac{1}{2}").ok
    assert boxed(r"\boxed{(x+1)^2}", "x^2+2x+1").ok
    assert not boxed(r"\boxed{x+1}", "x+2").ok


def test_unreadable_expected_call_is_unknown_and_not_wrong():
    assert get_verifier("tool")(CALL, "nothing").score is None


def test_final_answer_reads_the_last_of_what_it_finds():
    assert final_answer("<answer>1</answer> no <answer>2</answer>") == "2"
    assert final_answer("<think><answer>1</answer></think> 3").strip() == "3"


def test_wrong_answers_say_what_was_expected():
    assert get_verifier("numeric")("3", "4").feedback == "The expected answer is 4."


def run(code, tests="assert f(2) == 4", **limits):
    return sandbox.run_tests(code, tests, **limits)


def test_sandbox_runs_code_and_tests():
    assert run("def f(x):\n    return 2 * x").score == 1.0
    wrong = run("def f(x):\n    return x")
    assert wrong.score == 0.0
    assert "AssertionError" in wrong.feedback
    assert run("import sys\nsys.exit(0)").score == 0.0  # leaving early passes no test


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    pass",
        "import time\ntime.sleep(60)",
        "x = bytearray(2**31)",
        "open('big', 'wb').write(b'0' * 2**22)",
    ],
)
def test_sandbox_limits(code):
    assert run(code, "", seconds=1, memory=2**28).score == 0.0


def test_sandbox_that_cannot_start_is_unknown(monkeypatch):
    monkeypatch.setattr(sandbox.sys, "executable", "/does/not/exist")
    verdict = run("def f(x):\n    return 2 * x")
    assert verdict.score is None
    assert not verdict.ok


def test_code_needs_consent():
    with pytest.raises(UsageError, match="expected your consent"):
        get_verifier("python")
    python = get_verifier("python", allow_code_execution=True)
    assert python("Here:\n```python\ndef f(x):\n    return x + 1\n```", "assert f(1) == 2").ok
    assert python("no code", "assert True").score == 0.0


def test_unknown_verifier():
    with pytest.raises(UsageError, match="Verifier 'magic': expected one of exact, numeric"):
        get_verifier("magic")
