r"""How answers are marked: named functions from (response, expected answer) to a score.

Each reads the *answer* of a response: what follows ``</think>``, inside ``<answer>`` tags or the last ``\boxed{}``
where there are any.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from driftlab.errors import UsageError
from driftlab.training.masks import THINK_CLOSE
from driftlab.training.sandbox import run_tests
from driftlab.training.tasks import Verdict

Verifier = Callable[[str, str], Verdict]


def exact(response: str, answer: str) -> Verdict:
    """Compare the answers as text, case and white space apart.

    Examples
    --------
    >>> exact("So it is <answer> Paris </answer>", "paris").ok
    True
    """
    return _verdict(_squeeze(final_answer(response)) == _squeeze(answer), answer)


def numeric(response: str, answer: str) -> Verdict:
    """Compare the last number of the answer with the expected one, to 1e-6 relative.

    Examples
    --------
    >>> numeric("7 + 8 is 15.0.", "15").ok, numeric("about 1,015", "15").ok
    (True, False)
    """
    found, wanted = _last_number(final_answer(response)), _last_number(answer)
    ok = found is not None and wanted is not None and abs(found - wanted) <= 1e-6 * max(1.0, abs(wanted))
    return _verdict(ok, answer)


def boxed(response: str, answer: str) -> Verdict:
    r"""Compare the last ``\boxed{}``: as text, as numbers, and as formulas where math-verify is installed.

    Examples
    --------
    >>> boxed(r"Hence \boxed{\frac{1}{2}}.", r"\frac{1}{2}").ok, boxed("It is 12.", "12").ok
    (True, False)
    """
    found = _last_box(response)
    if found is None:
        return Verdict(0.0, False, r"There is no \boxed{} answer.")
    if _squeeze(found) == _squeeze(answer):
        return Verdict(1.0, True)
    left, right = _as_number(found), _as_number(answer)
    if left is not None and right is not None:
        return _verdict(abs(left - right) <= 1e-6 * max(1.0, abs(right)), answer)
    return _verdict(_same_formula(found, answer), answer)


def choice(response: str, answer: str) -> Verdict:
    """Compare the chosen letter.

    Examples
    --------
    >>> choice("I choose <answer>B</answer>", "B").ok, choice("The answer is (c).", "B").ok
    (True, False)
    """
    found = re.findall(r"(?<![A-Za-z'])([A-Z])(?![A-Za-z'])", final_answer(response).upper())
    return _verdict(bool(found) and found[-1] == answer.strip().strip("().").upper(), answer)


def tool(response: str, answer: str) -> Verdict:
    r"""Compare tool calls: the same actions as often, and the same inputs once all are merged.

    Calls are written ``Action: NAME`` and ``Action Input: {JSON}``.

    Examples
    --------
    >>> tool('Action: add\nAction Input: {"a": 1}', 'Action: add\nAction Input: {"a":1}').ok
    True
    """
    found, wanted = _calls(response), _calls(answer)
    if wanted is None:
        return Verdict(None, False, "The expected answer holds no readable tool call.")
    return _verdict(found == wanted, answer)


def regex(response: str, answer: str) -> Verdict:
    """Match the answer against a regular expression, all of it.

    Examples
    --------
    >>> regex("<answer>42 km</answer>", r"42 ?(km)?").ok
    True
    """
    return _verdict(re.fullmatch(answer, final_answer(response).strip()) is not None, "")


def python(response: str, answer: str) -> Verdict:
    """Run the last fenced code block followed by the tests in ``answer``; needs allow_code_execution."""
    blocks = re.findall(r"```(?:python|py)?\s*\n(.*?)```", response, re.DOTALL)
    if not blocks:
        return Verdict(0.0, False, "There is no fenced code block.")
    return run_tests(blocks[-1], answer)


VERIFIERS: dict[str, Verifier] = {
    "exact": exact,
    "numeric": numeric,
    "boxed": boxed,
    "choice": choice,
    "tool": tool,
    "regex": regex,
    "python": python,
}


def get_verifier(name: str, *, allow_code_execution: bool = False) -> Verifier:
    """Return a verifier by name.

    Raises
    ------
    UsageError
        If the name is unknown, or if it runs code and that was not allowed.
    """
    if name not in VERIFIERS:
        raise UsageError(f"Verifier {name!r}: expected one of {', '.join(VERIFIERS)}.")
    if name == "python" and not allow_code_execution:
        raise UsageError(
            "Verifier 'python' runs code that the model wrote: expected your consent, found none.",
            "Give --allow-code-execution.",
        )
    return VERIFIERS[name]


def final_answer(response: str) -> str:
    r"""Return the answer of a response: ``<answer>``, else the last ``\boxed{}``, else what follows the thought."""
    text = response.rpartition(THINK_CLOSE)[2]
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if tagged:
        return str(tagged[-1])
    inside = _last_box(text)
    return text if inside is None else inside


def _verdict(ok: bool, answer: str) -> Verdict:
    return Verdict(float(ok), ok, "" if ok or not answer else f"The expected answer is {answer}.")


def _squeeze(text: str) -> str:
    return " ".join(text.split()).casefold()


def _last_number(text: str) -> float | None:
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?", text)
    return _as_number(found[-1]) if found else None


def _as_number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").strip())
    except ValueError:
        return None


def _last_box(text: str) -> str | None:
    r"""Return the content of the last complete ``\boxed{...}``, braces nested."""
    start = text.rfind(r"\boxed")
    while start >= 0:
        opened = text.find("{", start)
        depth = 0
        for place in range(opened, len(text)) if opened >= 0 else ():
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[opened + 1 : place].strip()
        start = text.rfind(r"\boxed", 0, start)
    return None


def _same_formula(found: str, answer: str) -> bool:
    try:
        from math_verify import parse, verify
    except ImportError:
        return False
    # Its time limit uses signals, which only the main thread may set: formulas here are short. It warns of that.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    left, right = (parse(f"${text}$", parsing_timeout=None) for text in (found, answer))
    return bool(verify(right, left, timeout_seconds=None))


def _calls(text: str) -> tuple[Counter[str], dict[str, Any]] | None:
    """Return the multiset of actions and the merged inputs; None if an input is no JSON object."""
    names = Counter(name.strip() for name in re.findall(r"Action:[ \t]*([^\n]+)", text))
    merged: dict[str, Any] = {}
    for written in re.findall(r"Action[ _]Input:[ \t]*(\{.*?\})[ \t]*(?=\n|$)", text, re.DOTALL):
        try:
            merged |= json.loads(written)
        except ValueError:
            return None
    return (names, merged) if names else None
