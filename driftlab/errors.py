"""The errors a caller can act on.

Every message names the thing, what was expected and what was found; ``hint`` says what to do next.
A command line prints ``str(error)`` and nothing else, so the text must stand alone.
"""


class DriftlabError(Exception):
    """Base of every error that driftlab raises on purpose.

    Parameters
    ----------
    message : str
        One sentence: the thing, what was expected, what was found.
    hint : str, optional
        The next step, one short sentence.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def __reduce__(self) -> tuple[type["DriftlabError"], tuple[str, str]]:
        """Survive a trip between processes with the hint intact."""
        return (type(self), (self.message, self.hint))


class UsageError(DriftlabError):
    """An option or argument that cannot be right whatever the data are (exit code 2)."""


class CheckpointError(DriftlabError):
    """A checkpoint that cannot be read, or files that do not belong together."""


class DataError(DriftlabError):
    """A data set, score table or response file that cannot be used as asked."""


class ResultsError(DriftlabError):
    """A results folder that is missing, foreign, or made with other settings."""


class ShapeError(DriftlabError, ValueError):
    """An array whose shape or dtype does not fit the operation."""


class NumericalError(DriftlabError, ArithmeticError):
    """A computation whose self-check failed: its result would be wrong, so none is given."""


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's text, cut to what fits a sentence.

    Examples
    --------
    >>> first_line(ValueError("bad\nworse"))
    'bad'
    """
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:120].rstrip(".")
