"""Who does the work of a scan: this process, local worker processes, or a Ray cluster. Knows no weights.

A unit is independent of all others, and its result does not depend on who made it, so an engine may hand units out in
any order, twice, or again after a worker was lost.
"""

from driftlab.engines.base import ATTEMPTS, Engine, Finished, Labour, Unit, heavy_first
from driftlab.engines.choice import ENGINES, choose_engine, device_of_workers
from driftlab.engines.local import LocalEngine
from driftlab.engines.rayengine import RayEngine

__all__ = [
    "ATTEMPTS",
    "ENGINES",
    "Engine",
    "Finished",
    "Labour",
    "LocalEngine",
    "RayEngine",
    "Unit",
    "choose_engine",
    "device_of_workers",
    "heavy_first",
]
