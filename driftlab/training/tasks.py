"""What a model is asked and how its answer is marked: questions, verdicts, tasks."""

import random
from dataclasses import dataclass
from typing import Any, Protocol

# Where an answer begins when no think tags are used: everything before it is chain of thought.
ANSWER_START = r"\\boxed|<answer>|Action:|```"


@dataclass(frozen=True)
class Question:
    """One question of a task.

    Attributes
    ----------
    id : str
        Stable within its task: responses of two models are joined by it.
    prompt : str
        The user's text, without chat template.
    answer : str
        What the verifier compares with.
    gold : str or None
        A complete reference response; None where the task has none.
    system : str
        System prompt; empty for none.
    feedback : str
        Written remark that may be shown to a teacher; empty for none.
    entry : object
        What the task's own grader wants back; None for most tasks.
    """

    id: str
    prompt: str
    answer: str
    gold: str | None = None
    system: str = ""
    feedback: str = ""
    entry: Any = None


@dataclass(frozen=True)
class Verdict:
    """The mark of one response.

    Attributes
    ----------
    score : float or None
        Reward in [0, 1]; None if the verifier itself failed: the response then counts in no mean.
    ok : bool
        Whether the response may serve as a demonstration.
    feedback : str
        What was wrong, in words; may be empty.
    """

    score: float | None
    ok: bool
    feedback: str = ""


class Task(Protocol):
    """A source of questions with a verifier.

    ``sample`` gives training questions and ``evaluation`` the fixed questions of every evaluation; both depend on
    the generator that is passed and on nothing else.
    """

    @property
    def name(self) -> str:
        """What stages and tables call it."""

    @property
    def answer_start(self) -> str:
        """Regular expression of where an answer begins, for responses without think tags."""

    def sample(self, count: int, rng: random.Random) -> list[Question]:
        """Return ``count`` training questions."""

    def evaluation(self, count: int, rng: random.Random) -> list[Question]:
        """Return up to ``count`` questions that training never shows, or draws independently of it."""

    def verify(self, question: Question, response: str) -> Verdict:
        """Mark a response."""
