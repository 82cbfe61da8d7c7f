"""How good a model is at every task: sampled, like it is trained, on questions that stay the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from driftlab.training.config import TrainConfig
from driftlab.training.experience import student_prompt
from driftlab.training.language import Language
from driftlab.training.rollout import python_rng, sample, uniforms
from driftlab.training.tasks import Question, Task


@dataclass(frozen=True)
class Evaluation:
    """The scores of all tasks and the responses behind them, as rows of ``scores.jsonl`` and ``responses/``."""

    scores: list[dict[str, Any]]
    responses: list[dict[str, Any]]


def evaluation_questions(task: Task, config: TrainConfig) -> list[Question]:
    """Return the fixed questions of a task: they depend on the seed and on nothing that training does."""
    return task.evaluation(config.eval_samples, python_rng(config.seed, "evaluation", task.name))


def evaluate(language: Language, tasks: Sequence[Task], config: TrainConfig) -> Evaluation:
    """Sample one response to each evaluation question and mark it.

    Greedy decoding would hide what sampling shows: a model that knows an answer and gives it half the time. The
    random numbers of a question are the same at every evaluation, so differences between checkpoints are paired.
    """
    scores, rows = [], []
    for task in tasks:
        questions = evaluation_questions(task, config)
        prompts = [student_prompt(language, question, config.prompt_budget).ids for question in questions]
        draws = uniforms(len(prompts), config.max_new_tokens, config.seed, "evaluation", task.name)
        responses = sample(language, prompts, draws, config.temperature, rows=config.sample_batch)
        texts = [language.response_text(response.ids) for response in responses]
        verdicts = [task.verify(question, text) for question, text in zip(questions, texts, strict=True)]
        known = [verdict.score for verdict in verdicts if verdict.score is not None]
        mean = sum(known) / len(known) if known else None
        scores.append(
            {
                "task": task.name,
                "score": mean,
                "stderr": _standard_error(known),
                "n": len(known),
                "unknown": len(verdicts) - len(known),
                "seed": config.seed,
                "temperature": config.temperature,
                "mean_length": sum(len(response.ids) for response in responses) / len(responses),
                "truncated": sum(response.truncated for response in responses) / len(responses),
            }
        )
        rows += [
            {
                "id": f"{task.name}/{place}",
                "task": task.name,
                "prompt": question.prompt,
                "response": text,
                "reward": verdict.score,
                "truncated": response.truncated,
            }
            for place, (question, text, verdict, response) in enumerate(
                zip(questions, texts, verdicts, responses, strict=True)
            )
        ]
    return Evaluation(scores, rows)


def _standard_error(values: list[float]) -> float | None:
    """Return the standard error of the mean, None below two values."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return float((sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)) ** 0.5)
