"""Where tasks come from: the tiny world, JSON Lines files, and reasoning-gym."""

import json
import random
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from driftlab.errors import DataError, UsageError
from driftlab.training.tasks import ANSWER_START, Question, Task, Verdict
from driftlab.training.verifiers import Verifier, get_verifier

# Every fifth row is kept for evaluation and never trained on.
_HELD_OUT = 5
_RG_SYSTEM = "Think step by step, then give the final answer between <answer> and </answer>."
_RG_SPAN = 2**31


class FileTask:
    """Questions from a JSON Lines file with ``prompt, answer`` and optionally ``system, feedback, kind, gold``.

    Parameters
    ----------
    name : str
        What stages and tables call it.
    path : Path
        The file.
    verifier : str
        Verifier of rows without ``kind``; empty for none.
    allow_code_execution : bool
        Whether verifiers may run code.

    Raises
    ------
    DataError
        If a row cannot be used, naming its line.
    UsageError
        If a row has no verifier.
    """

    answer_start = ANSWER_START

    def __init__(self, name: str, path: Path, verifier: str = "", *, allow_code_execution: bool = False) -> None:
        self.name = name
        self._verifiers: dict[str, Verifier] = {}
        rows = []
        for line, row in _read_rows(path):
            kind = row.get("kind") or verifier
            if not kind:
                raise UsageError(
                    f"Task {name}, line {line} of {path}: expected a verifier, found none.",
                    f"Give the rows a field kind, or write {name}={path}::numeric.",
                )
            question = _question(row, f"{name}/{line}", f"Task {name}, line {line} of {path}")
            self._verifiers[question.id] = get_verifier(str(kind), allow_code_execution=allow_code_execution)
            rows.append(question)
        if len(rows) < 2:
            raise DataError(f"Task {name}, {path}: expected two rows or more, found {len(rows)}.")
        self.held_out = rows[_HELD_OUT - 1 :: _HELD_OUT] or rows[-1:]
        held = {question.id for question in self.held_out}
        self.training = [question for question in rows if question.id not in held]

    def sample(self, count: int, rng: random.Random) -> list[Question]:
        """Return ``count`` training rows, without repetition as far as they go."""
        chosen: list[Question] = []
        while len(chosen) < count:
            chosen += rng.sample(self.training, min(count - len(chosen), len(self.training)))
        return chosen

    def evaluation(self, count: int, rng: random.Random) -> list[Question]:
        """Return up to ``count`` of the rows that training never sees: every fifth of the file."""
        return rng.sample(self.held_out, min(count, len(self.held_out)))

    def verify(self, question: Question, response: str) -> Verdict:
        """Mark a response with the row's verifier."""
        verdict = self._verifiers[question.id](response, question.answer)
        return replace(verdict, feedback=question.feedback) if question.feedback and not verdict.ok else verdict


class GymTask:
    """Procedural questions of one reasoning-gym data set; success means a full score.

    Training and evaluation draw from the two halves of the generator's seeds.

    Parameters
    ----------
    name : str
        The data set, what stages and tables call the task.
    options : dict, optional
        Settings of the generator, difficulty for instance.
    verifier : str
        One of ours, for models that do not know the answer tags: then questions come without the instruction to use
        them. Empty for the data set's own grader on the text between the tags.

    Raises
    ------
    UsageError
        If the package or the data set is not there, or an option is wrong.
    """

    answer_start = ANSWER_START

    def __init__(self, name: str, options: dict[str, Any] | None = None, verifier: str = "") -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import reasoning_gym
                from reasoning_gym.factory import DATASETS
        except ImportError:
            raise UsageError(
                f"Task rg:{name}: expected the package reasoning-gym, found none.", "pip install 'driftlab[tasks]'."
            ) from None
        if name not in DATASETS:
            raise UsageError(f"Task rg:{name}: reasoning-gym has no data set of this name.")
        self.name = name
        self._options = options or {}
        self._verifier = get_verifier(verifier) if verifier else None
        self._create = reasoning_gym.create_dataset
        try:
            self._grader = self._create(name, size=1, seed=0, **self._options)
        except (TypeError, AssertionError, ValueError) as error:
            raise UsageError(f"Task rg:{name}: the generator does not take these options ({error}).") from None

    def sample(self, count: int, rng: random.Random) -> list[Question]:
        """Return ``count`` new questions."""
        return self._draw(count, rng.randrange(_RG_SPAN // 2))

    def evaluation(self, count: int, rng: random.Random) -> list[Question]:
        """Return ``count`` questions from seeds that training never uses."""
        return self._draw(count, _RG_SPAN // 2 + rng.randrange(_RG_SPAN // 2))

    def verify(self, question: Question, response: str) -> Verdict:
        """Grade the text between the answer tags, or the response with the verifier asked for."""
        if self._verifier is not None:
            return self._verifier(response, question.answer)
        from reasoning_gym.utils import extract_answer

        score = float(self._grader.score_answer(extract_answer(response), question.entry))
        ok = score >= 1.0  # wrong answers may earn partial credit
        return Verdict(score, ok, "" if ok else f"The expected answer is {question.answer}.")

    def _draw(self, count: int, seed: int) -> list[Question]:
        questions = []
        for index, entry in enumerate(self._create(self.name, size=count, seed=seed, **self._options)):
            answer, name = str(entry["answer"]), f"{self.name}/{seed}-{index}"
            gold, system = (answer, "") if self._verifier else (f"<answer>{answer}</answer>", _RG_SYSTEM)
            questions.append(Question(name, entry["question"], answer, gold=gold, system=system, entry=entry))
        return questions


def open_task(text: str, *, allow_code_execution: bool = False) -> Task:
    """Make the task that ``NAME=FILE.jsonl[::VERIFIER]`` or ``rg:NAME[?OPTION=VALUE&...][::VERIFIER]`` describes."""
    if text.startswith("rg:"):
        address, _, verifier = text.removeprefix("rg:").partition("::")
        name, _, query = address.partition("?")
        return GymTask(name, _options(text, query), verifier)
    name, equals, rest = text.partition("=")
    if not equals or not name or not rest:
        raise UsageError(f"Task {text!r}: expected NAME=FILE.jsonl, NAME=FILE.jsonl::VERIFIER or rg:NAME.")
    path, _, verifier = rest.partition("::")
    return FileTask(name, Path(path), verifier, allow_code_execution=allow_code_execution)


def _options(task: str, query: str) -> dict[str, Any]:
    """Read ``OPTION=VALUE&OPTION=VALUE``, values as JSON or else as words."""
    found: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"Task {task!r}: expected OPTION=VALUE after the question mark, found {part!r}.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def check_stages(tasks: Sequence[Task], names: Sequence[str]) -> None:
    """Check that every stage has its task.

    Raises
    ------
    UsageError
        Naming the stage and the tasks there are.
    """
    known = [task.name for task in tasks]
    for name in names:
        if name not in known:
            raise UsageError(f"Stage {name!r}: expected one of the tasks {', '.join(known)}.")


def _read_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Task file {path}: expected a readable UTF-8 file, found: {error}.") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise DataError(f"Task file {path}, line {number}: expected one JSON object a line, found {line[:40]!r}.")
        rows.append((number, row))
    return rows


def _question(row: dict[str, Any], identity: str, place: str) -> Question:
    for name in ("prompt", "answer"):
        if not isinstance(row.get(name), str | int | float) or str(row[name]) == "":
            raise DataError(f"{place}: expected a text {name}, found {row.get(name)!r}.")
    gold = row.get("gold")
    return Question(
        identity,
        str(row["prompt"]),
        str(row["answer"]),
        gold=str(gold if gold is not None else row["answer"]),
        system=str(row.get("system") or ""),
        feedback=str(row.get("feedback") or ""),
    )
