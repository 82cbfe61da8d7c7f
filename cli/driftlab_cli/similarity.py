"""stub."""


def similarity() -> None:
    """Stub."""
