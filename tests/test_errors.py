"""The text an error shows, and that it survives the places errors go: another process, a copy, a broader except."""

import copy
import pickle

import pytest

from driftlab import errors
from driftlab.errors import DriftlabError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DriftlabError)]


def test_every_kind_is_here():
    names = {kind.__name__ for kind in KINDS}
    assert names >= {
        "DriftlabError",
        "UsageError",
        "CheckpointError",
        "DataError",
        "ResultsError",
        "ShapeError",
        "NumericalError",
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(("Two.",), "Two."), (("Two.", "Pass one."), "Two. Pass one."), (("", "Pass one."), "Pass one.")],
)
def test_shows_message_then_hint(kind, arguments, shown):
    error = kind(*arguments)
    assert str(error) == shown
    assert (error.message, error.hint) == (arguments[0], (*arguments, "")[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_survives_a_trip_with_its_hint(kind, travel):
    arrived = travel(kind("Rank 9: expected at most 4.", "Use --rank 4."))
    assert type(arrived) is kind
    assert str(arrived) == "Rank 9: expected at most 4. Use --rank 4."
    assert (arrived.message, arrived.hint) == ("Rank 9: expected at most 4.", "Use --rank 4.")


def test_python_callers_can_use_the_errors_they_know():
    assert issubclass(errors.ShapeError, ValueError)
    assert issubclass(errors.NumericalError, ArithmeticError)
    assert not issubclass(errors.UsageError, ValueError)
