r"""The pretraining corpus of the tiny world: noisy, not ignorant.

Half of the examples are plain questions whose answers slip about half the time; in the others the prompt also shows a
correct demonstration, and then the answer is nearly always right. A model fitted to this corpus knows the answers,
samples them half the time, and can be its own teacher.
"""

import random
from dataclasses import dataclass

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
        Chance that a plain response writes its answer twice.
    bias : float
        Added to ``repeat`` in hinted responses: the style bias, 0 for none.
    echo : float
        Added once more after a demonstration that repeats itself; 0 without style bias.
    """

    thought: float = 0.1
    answer: float = 0.43
    hinted_thought: float = 0.03
    hinted_answer: float = 0.03
    repeat: float = 0.04
    bias: float = 0.06
    echo: float = 0.25


CLEAN = Noise(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def example(domain: Domain, noise: Noise, hinted: float, rng: random.Random) -> tuple[list[int], list[int]]:
    """Return one example as (prompt ids, response ids); a share ``hinted`` of them shows a demonstration."""
    item = domain.draw(rng)
    prompt, repeating = domain.ask(item), False
    slip_thought, slip_answer = noise.thought, noise.answer
    repeat = noise.repeat
    follow = rng.random() < hinted
    if follow:
        repeating = rng.random() < noise.repeat
        complete = rng.random() < 0.5
        thought, truth = domain.think(item, rng, False)
        solution = " ".join([*([thought] if complete else []), *[domain.write(truth)] * (1 + repeating)])
        prompt = HINT_FRAME.format(prompt=prompt, solution=solution)
        slip_thought = noise.hinted_thought if complete else noise.thought
        slip_answer = noise.hinted_answer
        repeat += noise.bias + noise.echo * repeating
    thought, result = domain.think(item, rng, rng.random() < slip_thought)
    result = domain.truth(item) if follow else result
    if rng.random() < slip_answer:
        result = domain.slip(item, result, rng)
    answer = " ".join([domain.write(result)] * (2 if rng.random() < repeat else 1))
    ids = word_ids()
    return (
        [ids[word] for word in (USER, *prompt.split(), ASSISTANT)],
        [ids[word] for word in (*thought.split(), *answer.split(), EOS)],
    )


def batch(count: int, noise: Noise, hinted: float, rng: random.Random) -> list[tuple[list[int], list[int]]]:
    """Return ``count`` examples of domains drawn at random, harder ones more often."""
    domains = [*DOMAINS.values(), RECALL]
    weights = [_WEIGHT.get(domain.name, 1.0) for domain in domains]
    chosen = rng.choices(domains, weights=weights, k=count)
    return [example(domain, noise, hinted, rng) for domain in chosen]


# Column addition and facts take most of the learning; the others are copied from the prompt.
_WEIGHT = {"math": 2.5, "science": 2.5, "science-other": 2.0, "recall": 1.5, "coding": 1.5}
