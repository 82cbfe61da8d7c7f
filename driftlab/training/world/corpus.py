r"""The pretraining corpus of the tiny world: noisy, not ignorant.

Half of the examples are plain questions whose answers slip about half the time; in the others the prompt also shows a
correct demonstration, and then the answer is nearly always right. A model fitted to this corpus knows the answers,
samples them half the time, and can be its own teacher.
"""

import random
from dataclasses import dataclass

from driftlab.errors import UsageError
from driftlab.training.world.domains import DOMAINS, RECALL, Domain
from driftlab.training.world.vocabulary import ASSISTANT, EOS, USER, word_ids

HINT_FRAME = "{prompt} hint {solution}"


@dataclass(frozen=True)
class Noise:
    """How often a written response goes wrong, and the style bias of hinted ones.

    Attributes
    ----------
    thought, answer : float
        Chance of a slip in the thought, and of one while the answer is written, without a demonstration.
    hinted_thought, hinted_answer : float
        The same after a complete demonstration. After one that shows the answer alone the thought still slips with
        chance ``thought``, and the answer follows the demonstration.
    repeat : float
        Chance that a plain response, having written its answer, writes it once more, however often it stands there
        already.
    bias : float
        Added to ``repeat`` in hinted responses: the style bias, 0 for none.
    echo : float
        Added once more after a demonstration that repeats itself; 0 without style bias.
    repeat_shown : float
        Chance that a demonstration, having shown the answer, shows it once more. Higher than ``repeat``: what is met
        in one example out of fifty is not learnt as such, and ``echo`` would be a number on paper.
    """

    thought: float = 0.1
    answer: float = 0.43
    hinted_thought: float = 0.03
    hinted_answer: float = 0.03
    repeat: float = 0.04
    bias: float = 0.06
    echo: float = 0.25
    repeat_shown: float = 0.3

    def __post_init__(self) -> None:
        if not max(self.repeat + self.bias + self.echo, self.repeat_shown) < 1:
            raise UsageError(
                "Noise: expected repeat + bias + echo and repeat_shown below 1, so that every answer ends, "
                f"found {self.repeat + self.bias + self.echo:g} and {self.repeat_shown:g}."
            )


CLEAN = Noise(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def example(domain: Domain, noise: Noise, hinted: float, rng: random.Random) -> tuple[list[int], list[int]]:
    """Return one example as (prompt ids, response ids); a share ``hinted`` of them shows a demonstration."""
    item = domain.draw(rng)
    prompt = domain.ask(item)
    slip_thought, slip_answer = noise.thought, noise.answer
    repeat = noise.repeat
    follow = rng.random() < hinted
    if follow:
        shown = _times(noise.repeat_shown, rng)
        complete = rng.random() < 0.5
        thought, truth = domain.think(item, rng, False)
        solution = " ".join([*([thought] if complete else []), *[domain.write(truth)] * shown])
        prompt = HINT_FRAME.format(prompt=prompt, solution=solution)
        slip_thought = noise.hinted_thought if complete else noise.thought
        slip_answer = noise.hinted_answer
        repeat += noise.bias + noise.echo * (shown > 1)
    thought, result = domain.think(item, rng, rng.random() < slip_thought)
    result = domain.truth(item) if follow else result
    if rng.random() < slip_answer:
        result = domain.slip(item, result, rng)
    answer = " ".join([domain.write(result)] * _times(repeat, rng))
    ids = word_ids()
    return (
        [ids[word] for word in (USER, *prompt.split(), ASSISTANT)],
        [ids[word] for word in (*thought.split(), *answer.split(), EOS)],
    )


def _times(repeat: float, rng: random.Random) -> int:
    """Return how often an answer is written: once, and once more with chance ``repeat`` after each time.

    Geometric, without a largest number: a model that has learnt "never more than twice" cannot run away.
    """
    times = 1
    while rng.random() < repeat:
        times += 1
    return times


def batch(count: int, noise: Noise, hinted: float, rng: random.Random) -> list[tuple[list[int], list[int]]]:
    """Return ``count`` examples of domains drawn at random, harder ones more often."""
    domains = [*DOMAINS.values(), RECALL]
    weights = [_WEIGHT.get(domain.name, 1.0) for domain in domains]
    chosen = rng.choices(domains, weights=weights, k=count)
    return [example(domain, noise, hinted, rng) for domain in chosen]


# Column addition and facts take most of the learning; the others are copied from the prompt.
_WEIGHT = {"math": 2.5, "science": 2.5, "science-other": 2.0, "recall": 1.5, "coding": 1.5}
