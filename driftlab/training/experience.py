"""One rollout batch: questions, sampled responses, their marks, and what a teacher is shown."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftlab.errors import DataError
from driftlab.training.config import TrainConfig
from driftlab.training.language import Language, Prompt
from driftlab.training.masks import answer_mask, answer_text, random_mask, string_mask
from driftlab.training.objectives import group_advantages
from driftlab.training.rollout import Response, derived_seed, python_rng, sample, uniforms
from driftlab.training.tasks import Question, Task, Verdict


@dataclass
class Sample:
    """One response and everything the loss needs to know about it.

    Attributes
    ----------
    row : int
        Its place in the whole batch, over all processes.
    context : Prompt
        What the teacher reads before the response; the plain prompt where there is nothing to show.
    shown : bool
        Whether ``context`` shows a demonstration or feedback.
    advantage : float
        Of the policy loss.
    learn, distil : Tensor of bool
        Response tokens in the policy (or likelihood) loss and in the distillation loss.
    """

    row: int
    question: Question
    prompt: Prompt
    response: Response
    verdict: Verdict
    context: Prompt
    shown: bool
    advantage: float
    learn: Tensor
    distil: Tensor
    lone_success: bool = False


@dataclass(frozen=True)
class Frame:
    """How a demonstration and feedback are put into the teacher's prompt, after the question."""

    solution: str = "\n\nHere is a correct solution to this problem:\n\n{solution}"
    feedback: str = "\n\nFeedback on an earlier, unsuccessful attempt:\n\n{feedback}"
    closing: str = "\n\nNow solve the problem yourself."

    def content(self, prompt: str, solution: str, feedback: str) -> str:
        """Return the user text of the teacher's prompt."""
        parts = [self.solution.replace("{solution}", solution)] if solution else []
        parts += [self.feedback.replace("{feedback}", feedback)] if feedback else []
        return prompt + "".join(parts) + self.closing


def draw_questions(task: Task, config: TrainConfig, step: int, count: int) -> list[Question]:
    """Return the questions of one step: the same whatever happened before."""
    return task.sample(count, python_rng(config.seed, "questions", task.name, step))


def collect(
    language: Language, task: Task, config: TrainConfig, frame: Frame, step: int, rows: Sequence[int]
) -> list[Sample]:
    """Sample and mark the responses of one step to the prompts numbered ``rows``.

    Parameters
    ----------
    language : Language
        The student.
    task : Task
        Where the questions come from.
    config : TrainConfig
        Batch size, lengths, masks.
    frame : Frame
        How the teacher is shown a demonstration.
    step : int
        Global step; with the seed it decides every random number.
    rows : sequence of int
        Which of the step's prompts this process takes; groups are never split.
    """
    questions = draw_questions(task, config, step, config.prompts)
    prompts = {row: student_prompt(language, questions[row], config.prompt_budget) for row in rows}
    draws = uniforms(config.prompts * config.group, config.max_new_tokens, config.seed, "rollout", step)
    chosen = [row * config.group + place for row in rows for place in range(config.group)]
    responses = sample(
        language,
        [prompts[row].ids for row in rows],
        draws[chosen],
        config.temperature,
        copies=config.group,
        rows=config.sample_batch,
    )
    samples: list[Sample] = []
    for index, row in enumerate(rows):
        group = responses[index * config.group : (index + 1) * config.group]
        samples += _group(language, task, config, frame, step, row, questions[row], prompts[row], group)
    return samples


def collect_gold(language: Language, task: Task, config: TrainConfig, step: int, rows: Sequence[int]) -> list[Sample]:
    """Return reference solutions as samples: ``group`` questions for each prompt of a sampling method."""
    questions = draw_questions(task, config, step, config.prompts * config.group)
    samples = []
    for row in [row * config.group + place for row in rows for place in range(config.group)]:
        question = questions[row]
        if question.gold is None:
            raise DataError(
                f"Task {task.name}: expected a reference solution for question {question.id!r}, found none.",
                "Use --set sft_on=own, or another method.",
            )
        ids = [*language.encode(question.gold), language.eos_id]
        prompt = student_prompt(language, question, config.prompt_budget)
        every = torch.ones(len(ids), dtype=torch.bool)
        samples.append(
            Sample(row, question, prompt, Response(ids, False), Verdict(1.0, True), prompt, False, 0.0, every, ~every)
        )
    return samples


def student_prompt(language: Language, question: Question, budget: int) -> Prompt:
    """Render a question, or say that it is too long: a question is never shortened."""
    prompt = language.render(question)
    if len(prompt.ids) > budget:
        raise DataError(
            f"Question {question.id!r}: expected a prompt of at most {budget} tokens, found {len(prompt.ids)}.",
            "Raise prompt_budget or leave the question out.",
        )
    return prompt


def teacher_prompt(
    language: Language, question: Question, frame: Frame, budget: int, *, solution: str = "", feedback: str = ""
) -> Prompt:
    """Render what the teacher reads; a prompt over its budget loses the end of the demonstration, nothing else."""
    ids: list[int] | None = None
    while True:
        prompt = language.render(question, frame.content(question.prompt, solution, feedback))
        excess = len(prompt.ids) - budget
        if excess <= 0:
            return prompt
        ids = language.encode(solution) if ids is None else ids
        if not ids:
            raise DataError(
                f"Question {question.id!r}: expected a teacher prompt of at most {budget} tokens without the "
                f"demonstration, found {len(prompt.ids)}.",
                "Raise teacher_budget.",
            )
        ids = ids[: max(len(ids) - excess, 0)]
        solution = language.response_text(ids)


def _group(
    language: Language,
    task: Task,
    config: TrainConfig,
    frame: Frame,
    step: int,
    row: int,
    question: Question,
    prompt: Prompt,
    responses: list[Response],
) -> list[Sample]:
    """Mark the responses to one prompt and choose what the teacher is shown for each."""
    texts = [language.response_text(response.ids) for response in responses]
    verdicts = [task.verify(question, text) for text in texts]
    rewards = torch.tensor([[verdict.score if verdict.score is not None else torch.nan for verdict in verdicts]])
    if config.method in ("grpo", "hybrid"):
        advantages = group_advantages(rewards, scale=config.advantage_scale)[0].tolist()
    else:
        advantages = [0.0] * len(responses)
    good = [
        place for place, verdict in enumerate(verdicts) if verdict.ok and (verdict.score or 0) >= config.success_level
    ]
    rng = python_rng(config.seed, "demo", step, row)
    contexts: dict[tuple[str, str], Prompt] = {}  # the peers of a group often give one and the same answer
    samples = []
    for place, (response, verdict) in enumerate(zip(responses, verdicts, strict=True)):
        others = [texts[peer] for peer in good if peer != place]
        solution = _demonstration(others, question, task, config, rng)
        feedback = verdict.feedback if config.feedback and not verdict.ok else ""
        shown = config.method in ("sdpo", "hybrid") and bool(solution or feedback)
        context = prompt
        if shown:
            if (solution, feedback) not in contexts:
                contexts[solution, feedback] = teacher_prompt(
                    language, question, frame, config.teacher_budget, solution=solution, feedback=feedback
                )
            context = contexts[solution, feedback]
        number = row * config.group + place
        everything = torch.ones(len(response.ids), dtype=torch.bool)
        known = verdict.score is not None
        learn = everything if known and (config.method != "sft" or place in good) else ~everything
        distil = _distil_mask(language, task, config, step, number, prompt, response) if shown else ~everything
        samples.append(
            Sample(number, question, prompt, response, verdict, context, shown, advantages[place], learn, distil,
                   lone_success=good == [place])
        )  # fmt: skip
    return samples


def _demonstration(peers: list[str], question: Question, task: Task, config: TrainConfig, rng: random.Random) -> str:
    """Return a successful other response or the reference solution, as the settings ask; empty for none."""
    if config.demo == "none":
        return ""
    text = rng.choice(peers) if peers and config.demo != "gold" else None
    if text is None and config.demo != "peer":
        text = question.gold
    if text is None:
        return ""
    return text if config.demo_cot else answer_text(text, task.answer_start)


def _distil_mask(
    language: Language, task: Task, config: TrainConfig, step: int, number: int, prompt: Prompt, response: Response
) -> Tensor:
    """Return the tokens that are distilled: the answer, or all, less what the masks take out."""
    mask = torch.ones(len(response.ids), dtype=torch.bool)
    if not config.distill_cot:
        mask &= answer_mask(
            response.ids, language.decode, task.answer_start, stop_ids=language.stop_ids, in_thought=prompt.in_thought
        )
    if config.mask_strings:
        mask &= ~string_mask(response.ids, language.decode, config.mask_strings)
    if config.mask_ratio < 1:
        generator = torch.Generator().manual_seed(derived_seed(config.seed, "mask", step, number))
        mask &= random_mask(len(response.ids), config.mask_ratio, generator)
    return mask
