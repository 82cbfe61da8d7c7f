"""The responses that are measured: sampled anew to a run's fixed evaluation questions, or read from its folder.

Fresh responses are scored on the ids that were sampled. Stored ones are text, and a text can have been sampled as other
ids than its encoding; they are encoded again only where that encoding reads back as the same text, and the rest is
counted.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftlab.devices import exact_math
from driftlab.errors import DataError, UsageError
from driftlab.training.config import TrainConfig
from driftlab.training.evaluate import evaluation_questions
from driftlab.training.experience import student_prompt
from driftlab.training.language import Language
from driftlab.training.rollout import sample, uniforms
from driftlab.training.sources import open_task
from driftlab.training.tasks import Question, Task


@dataclass(frozen=True)
class Answer:
    """One response; ``ids`` and ``context`` are empty where only the text is known."""

    task: str
    prompt: str
    text: str
    reward: float | None
    truncated: bool
    context: list[int] = field(default_factory=list, repr=False)
    ids: list[int] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Exam:
    """What is asked: tasks with their questions, and how it is answered.

    Attributes
    ----------
    tasks : list of (Task, list of Question)
    copies : int
        Responses to each question.
    config : TrainConfig
        For temperature, length budget and prompt budget.
    success_level : float
        A reward of at least this much is a success.
    seed : int
        Of the sampler. Every model gets the same random numbers, so that differences are paired.
    """

    tasks: list[tuple[Task, list[Question]]]
    copies: int
    config: TrainConfig
    success_level: float
    seed: int


def make_exam(
    config: TrainConfig, *, prompts: int, copies: int, only: Sequence[str] = (), seed: int = 0, run_code: bool = False
) -> Exam:
    """Set the first ``prompts`` evaluation questions of each of a run's tasks.

    Raises
    ------
    UsageError
        If the run has no tasks, or a name in ``only`` is none of them.
    """
    from driftlab.training.world.domains import DOMAINS

    tasks: list[Task] = [] if config.model else list(DOMAINS.values())
    tasks += [open_task(text, allow_code_execution=run_code) for text in config.tasks]
    names = [task.name for task in tasks]
    for name in only:
        if name not in names:
            raise UsageError(f"--task {name}: expected one of {', '.join(names)}.")
    chosen = [task for task in tasks if not only or task.name in only]
    if not chosen:
        raise UsageError("Tasks: expected at least one, found none.", "Give --questions NAME=FILE.jsonl.")
    asked = [(task, evaluation_questions(task, config)[:prompts]) for task in chosen]
    return Exam(asked, copies, config, config.success_level, seed)


def take(language: Language, exam: Exam, batch: int) -> list[Answer]:
    """Let a model answer, at most ``batch`` responses at a time; the batch changes no response but by rounding."""
    answers = []
    for task, questions in exam.tasks:
        contexts = [student_prompt(language, question, exam.config.prompt_budget).ids for question in questions]
        draws = uniforms(len(contexts) * exam.copies, exam.config.max_new_tokens, exam.seed, "policy", task.name)
        with exact_math():
            found = sample(language, contexts, draws, exam.config.temperature, copies=exam.copies, rows=batch)
        for place, response in enumerate(found):
            number = place // exam.copies
            text = language.response_text(response.ids)
            reward = task.verify(questions[number], text).score
            prompt = f"{task.name}/{number}"
            answers.append(Answer(task.name, prompt, text, reward, response.truncated, contexts[number], response.ids))
    return answers


def read_answers(file: Path) -> tuple[list[Answer], int]:
    """Read ``responses/LABEL.jsonl``, and count the lines that hold no response.

    Raises
    ------
    DataError
        If the file cannot be read or holds none at all.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Responses {file}: expected a readable file, found: {error}.") from error
    found = [answer for answer in map(_answer, lines) if answer is not None]
    if not found:
        raise DataError(f"Responses {file}: expected JSON Lines with id, task and response, found none.")
    return found, len(lines) - len(found)


def encode_stored(language: Language, exam: Exam, stored: Sequence[Answer]) -> tuple[list[Answer], int]:
    """Give stored responses to the exam's questions their ids, and count those whose text does not survive it.

    The end-of-sequence token, which the text does not show, is put back where the response was not cut.
    """
    asked = {f"{task.name}/{place}": (task, q) for task, qs in exam.tasks for place, q in enumerate(qs)}
    kept, lost = [], 0
    for answer in stored:
        if answer.prompt not in asked:
            continue
        _, question = asked[answer.prompt]
        ids = language.encode(answer.text)
        exact = language.response_text(ids) == answer.text
        ids = ids if answer.truncated else [*ids, language.eos_id]
        if not exact or not ids:
            lost += 1
            continue
        context = student_prompt(language, question, exam.config.prompt_budget).ids
        kept.append(Answer(answer.task, answer.prompt, answer.text, answer.reward, answer.truncated, context, ids))
    return kept, lost


def _answer(line: str) -> Answer | None:
    try:
        row: dict[str, Any] = json.loads(line)
        reward = row.get("reward")
        return Answer(
            str(row["task"]),
            str(row["id"]),
            str(row["response"]),
            None if reward is None else float(reward),
            bool(row.get("truncated", False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
