"""Drift inside other people's trainers.

>>> from driftlab.integrations import DriftCallback              # doctest: +SKIP
>>> DriftCallback("drift", every=50, stop={"nss": 1e-2}).attach(trainer)   # doctest: +SKIP
"""

from driftlab.integrations.callback import DriftCallback

__all__ = ["DriftCallback"]
