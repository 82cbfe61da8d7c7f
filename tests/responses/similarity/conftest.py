"""Encoders with known vectors, and sets of responses made by hand."""

import math

import numpy as np
import pytest

from driftlab.domains.encoded import Encoded
from driftlab.errors import NumericalError
from driftlab.responses.readers import normal_form


class AngleEncoder:
    """A text ``30`` is the unit vector at 30 degrees; ``nan`` has no vector, ``bad`` stops the whole batch."""

    name, key, window = "angles", "angles", 4

    def __init__(self):
        self.calls = 0

    def encode(self, texts, advance=lambda done: None):
        self.calls += 1
        if "bad" in texts:
            raise NumericalError("the vector of one text is not finite")
        degrees = np.array([math.nan if text == "nan" else math.radians(float(text)) for text in texts])
        vectors = np.stack([np.cos(degrees), np.sin(degrees)], axis=1).astype(np.float32)
        long = np.array([len(text) > self.window for text in texts])
        advance(len(texts))
        return Encoded(vectors, long, np.arange(len(texts)))


@pytest.fixture
def angles():
    return AngleEncoder()


@pytest.fixture
def answered():
    """Make a set of responses from ``{id: response}``; every prompt is ``ask ID``."""

    def make(responses, source="file", **more):
        rows = [
            {
                "id": name,
                "task": "",
                "prompt": f"ask {name}",
                "response": text,
                "reward": None,
                "truncated": None,
                "tokens": None,
            }
            | {key: value.get(name) for key, value in more.items()}
            for name, text in responses.items()
        ]
        return normal_form(rows, source, "records")

    return make
