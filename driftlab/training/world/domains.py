r"""The ten domains of the tiny world, each a small procedure with a verifier.

A response is a thought followed by an answer: ``7 + 8 = 1 5 ; 4 + 3 + 1 = 8 ; \boxed { 8 5 }``. Each domain says how
to draw an item, how to think about it (rightly or with one slip), what the true result is and how a result is written
down. The pretraining corpus, the gold responses and the verifiers are all made from these four.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driftlab.training.tasks import Question, Verdict
from driftlab.training.world import vocabulary as words

Item = tuple[Any, ...]
Result = tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """One domain of the tiny world; fulfils :class:`driftlab.training.tasks.Task`.

    Attributes
    ----------
    name : str
        What stages and tables call it.
    draw : callable
        Random item.
    ask : callable
        Item to prompt.
    think : callable
        Item, generator and "with a slip?" to (thought, the result it leads to).
    slip : callable
        Item, result and generator to another, wrong result.
    truth : callable
        Item to true result.
    open, close : str
        What stands around a written result.
    """

    name: str
    draw: Callable[[random.Random], Item]
    ask: Callable[[Item], str]
    think: Callable[[Item, random.Random, bool], tuple[str, Result]]
    slip: Callable[[Item, Result, random.Random], Result]
    truth: Callable[[Item], Result]
    open: str = r"\boxed {"
    close: str = "}"

    @property
    def answer_start(self) -> str:
        """Regular expression of the first token of an answer."""
        return re.escape(self.open.split()[0])

    def write(self, result: Result) -> str:
        """Write a result down as an answer."""
        return " ".join([self.open, *result, self.close]).strip()

    def sample(self, count: int, rng: random.Random) -> list[Question]:
        """Return ``count`` random questions."""
        return [self.question(self.draw(rng)) for _ in range(count)]

    def evaluation(self, count: int, rng: random.Random) -> list[Question]:
        """Return ``count`` random questions; the space of questions is small, so training may have met some."""
        return self.sample(count, rng)

    def question(self, item: Item) -> Question:
        """Make the question of an item, gold response included."""
        prompt = self.ask(item)
        thought, result = self.think(item, random.Random(0), False)
        answer = self.write(result)
        return Question(prompt, prompt, answer, gold=f"{thought} {answer}", feedback=answer)

    def verify(self, question: Question, response: str) -> Verdict:
        """Compare the last answer in the response with the true one.

        Examples
        --------
        >>> question = DOMAINS["math"].sample(1, random.Random(0))[0]
        >>> DOMAINS["math"].verify(question, question.gold).score
        1.0
        """
        found = self._last_answer(response)
        ok = found is not None and self.run(found) == self.run(self._last_answer(question.answer) or ())
        return Verdict(float(ok), ok, "" if ok else question.feedback)

    def run(self, result: Result) -> Any:
        """Return what an answer amounts to; an answer that is a program is executed."""
        return _execute(result) if self.open == "```" else result

    def _last_answer(self, response: str) -> Result | None:
        end = re.escape(self.close) if self.close else rf"{re.escape(self.open)}|$"
        found = re.findall(rf"{re.escape(self.open)} (.*?) ?(?={end})", response)
        if self.open == self.close:  # fences: every second piece lies outside
            found = found[::2]
        return tuple(found[-1].split()) if found else None


def _execute(program: Result) -> list[str] | None:
    """Run a program ``print NAME NAME ...`` and return what it prints, None if it is malformed."""
    match program:
        case ["print", *names] if all(name in words.VARIABLES for name in names):
            return list(names)
        case _:
            return None


def _other(choices: list[str], right: str, rng: random.Random) -> str:
    return rng.choice([choice for choice in choices if choice != right])


def _replace_one(result: Result, choices: list[str], rng: random.Random) -> Result:
    """Return ``result`` with one entry, drawn among those that stand in ``choices``, replaced."""
    places = [place for place, word in enumerate(result) if word in choices]
    place = rng.choice(places)
    return (*result[:place], _other(choices, result[place], rng), *result[place + 1 :])


# Addition: two digits with column work, one digit without (never trained).


def _digits(number: int) -> str:
    return " ".join(str(number))


def _add(item: Item, rng: random.Random, wrong: bool) -> tuple[str, Result]:
    left, right = item
    place = rng.randrange(2) if wrong else -1
    ones = left % 10 + right % 10
    if place == 0:
        ones = rng.choice([value for value in range(19) if value != ones])
    tens = left // 10 + right // 10 + ones // 10
    if place == 1:
        tens = rng.choice([value for value in range(1, 20) if value != tens])
    thought = (
        f"{left % 10} + {right % 10} = {_digits(ones)} ; "
        f"{left // 10} + {right // 10} + {ones // 10} = {_digits(tens)} ;"
    )
    return thought, tuple(f"{tens}{ones % 10}")


def _add_easy(item: Item, rng: random.Random, wrong: bool) -> tuple[str, Result]:
    left, right = item
    total = left + right
    if wrong:
        total = rng.choice([value for value in range(19) if value != total])
    return f"{left} + {right} = {_digits(total)} ;", tuple(str(total))


def _wrong_digit(item: Item, result: Result, rng: random.Random) -> Result:
    return _replace_one(result, words.DIGITS, rng)


# Facts with four options: two sets of invented entities (the second never trained), and capitals without options.


def _fact_table(names: list[str], seed: int) -> dict[tuple[str, str], str]:
    rng = random.Random(seed)
    return {
        (name, kind): rng.choice(values)
        for name in names
        for kind, values in (("color", words.COLORS), ("home", words.HOMES))
    }


_FACTS = _fact_table(words.ENTITIES, 1) | _fact_table(words.OTHER_ENTITIES, 2)
_CAPITAL_OF = dict(zip(words.LANDS, random.Random(3).sample(words.CAPITALS, len(words.CAPITALS)), strict=True))


def _draw_fact(names: list[str]) -> Callable[[random.Random], Item]:
    def draw(rng: random.Random) -> Item:
        name, kind = rng.choice(names), rng.choice(["color", "home"])
        values = words.COLORS if kind == "color" else words.HOMES
        right = _FACTS[name, kind]
        options = [right, *rng.sample([value for value in values if value != right], 3)]
        rng.shuffle(options)
        return name, kind, *options

    return draw


def _ask_fact(item: Item) -> str:
    name, kind, *options = item
    listed = " ".join(f"{option} {letter}" for letter, option in zip(words.LETTERS, options, strict=True))
    return f"science which {kind} has {name} ? {listed}"


def _recall(item: Item, rng: random.Random, wrong: bool) -> tuple[str, Result]:
    name, kind, *options = item
    value = _other(options, _FACTS[name, kind], rng) if wrong else _FACTS[name, kind]
    letter = words.LETTERS[options.index(value)]
    return f"{name} {kind} is {value} {letter} ;", (letter,)


def _capital(item: Item, rng: random.Random, wrong: bool) -> tuple[str, Result]:
    (land,) = item
    city = _other(words.CAPITALS, _CAPITAL_OF[land], rng) if wrong else _CAPITAL_OF[land]
    return f"the capital of {land} is {city} ;", (city,)


# Tool calls: another format, no box. Two arguments are never trained.


def _call(item: Item, rng: random.Random, wrong: bool) -> tuple[str, Result]:
    need, city, *day = item
    if wrong:
        need = _other(list(words.TOOLS), need, rng)
    arguments = ["city", "=", city, *([",", "day", "=", *day] if day else [])]
    return f"need {need} so use {words.TOOLS[need]} ;", (words.TOOLS[need], "(", *arguments, ")")


def _ask_tool(item: Item) -> str:
    need, city, *day = item
    return f"tool {need} city {city}" + (f" day {day[0]}" if day else "")


def _wrong_call(item: Item, result: Result, rng: random.Random) -> Result:
    choices = rng.choice([list(words.TOOLS.values()), words.CITIES, *([words.DAYS] if len(item) == 3 else [])])
    return _replace_one(result, choices, rng)


# Programs on a list of three or four variables. swap and rotate are never trained.


def _draw_list(operations: list[str]) -> Callable[[random.Random], Item]:
    return lambda rng: (rng.choice(operations), *rng.sample(words.VARIABLES, rng.choice([3, 4])))


def _apply(operation: str, values: list[str]) -> list[str]:
    match operation:
        case "reverse":
            return values[::-1]
        case "first":
            return values[:1]
        case "last":
            return values[-1:]
        case "duplicate":
            return [value for value in values for _ in range(2)]
        case "swap":
            return [values[1], values[0], *values[2:]]
        case _:
            return [*values[1:], values[0]]


def _program(item: Item, rng: random.Random, wrong: bool) -> tuple[str, Result]:
    operation, *values = item
    order = _apply(operation, values)
    if wrong:
        order = list(_replace_one(tuple(order), words.VARIABLES, rng))
    return f"order {' '.join(order)} ;", ("print", *order)


def _wrong_program(item: Item, result: Result, rng: random.Random) -> Result:
    return _replace_one(result, words.VARIABLES, rng)


# Logic: not p, then one connective (never trained).


def _logic(item: Item, rng: random.Random, wrong: bool) -> tuple[str, Result]:
    first, connective, second = item
    inner = "false" if first == "true" else "true"
    values = [inner == "true", second == "true"]
    outer = str(all(values) if connective == "and" else any(values)).lower()
    if wrong:
        outer = _other(words.TRUTH, outer, rng)
    return f"not {first} = {inner} ; {inner} {connective} {second} = {outer} ;", (outer,)


def _wrong_truth(item: Item, result: Result, rng: random.Random) -> Result:
    return (_other(words.TRUTH, result[0], rng),)


def _domain(name: str, draw: Any, ask: Any, think: Any, slip: Any, open: str = r"\boxed {", close: str = "}") -> Domain:
    return Domain(name, draw, ask, think, slip, lambda item: think(item, random.Random(0), False)[1], open, close)


DOMAINS: dict[str, Domain] = {
    domain.name: domain
    for domain in (
        _domain(
            "math",
            lambda rng: (rng.randint(10, 99), rng.randint(10, 99)),
            lambda item: f"add {_digits(item[0])} + {_digits(item[1])} ?",
            _add,
            _wrong_digit,
        ),
        _domain(
            "science",
            _draw_fact(words.ENTITIES),
            _ask_fact,
            _recall,
            lambda item, result, rng: (_other(words.LETTERS, result[0], rng),),
        ),
        _domain(
            "tooluse",
            lambda rng: (rng.choice(list(words.TOOLS)), rng.choice(words.CITIES)),
            _ask_tool,
            _call,
            _wrong_call,
            "Action:",
            "",
        ),
        _domain(
            "coding",
            _draw_list(words.OPERATIONS[:4]),
            lambda item: f"code {item[0]} of [ {' '.join(item[1:])} ]",
            _program,
            _wrong_program,
            "```",
            "```",
        ),
        _domain(
            "math-easy",
            lambda rng: (rng.randint(0, 9), rng.randint(0, 9)),
            lambda item: f"sum {item[0]} + {item[1]} ?",
            _add_easy,
            _wrong_digit,
        ),
        _domain(
            "science-other",
            _draw_fact(words.OTHER_ENTITIES),
            _ask_fact,
            _recall,
            lambda item, result, rng: (_other(words.LETTERS, result[0], rng),),
        ),
        _domain(
            "tool-two",
            lambda rng: (rng.choice(list(words.TOOLS)), rng.choice(words.CITIES), rng.choice(words.DAYS)),
            _ask_tool,
            _call,
            _wrong_call,
            "Action:",
            "",
        ),
        _domain(
            "code-near",
            _draw_list(words.OPERATIONS[4:]),
            lambda item: f"code {item[0]} of [ {' '.join(item[1:])} ]",
            _program,
            _wrong_program,
            "```",
            "```",
        ),
        _domain(
            "logic",
            lambda rng: (rng.choice(words.TRUTH), rng.choice(["and", "or"]), rng.choice(words.TRUTH)),
            lambda item: f"logic not {item[0]} {item[1]} {item[2]} ?",
            _logic,
            _wrong_truth,
        ),
        _domain(
            "knowledge",
            lambda rng: (rng.choice(words.LANDS),),
            lambda item: f"know capital of {item[0]} ?",
            _capital,
            lambda item, result, rng: (_other(words.CAPITALS, result[0], rng),),
        ),
    )
}

# Pretraining only: the facts asked without options. With options alone, picking one of the four is learnt long before
# the facts are, and then they never are.
RECALL = _domain(
    "recall",
    _draw_fact([*words.ENTITIES, *words.OTHER_ENTITIES]),
    lambda item: f"science which {item[1]} has {item[0]} ?",
    lambda item, rng, wrong: (f"{item[0]} {item[1]} is {_FACTS[item[:2]]} ;", (_FACTS[item[:2]],)),
    lambda item, result, rng: (_other(words.COLORS + words.HOMES, result[0], rng),),
)

TRAINED = ("math", "science", "tooluse", "coding")
UNSEEN = tuple(name for name in DOMAINS if name not in TRAINED)
