"""Two matrices in, drift numbers out. Knows tensors only: no files, no commands."""

from driftlab.spectral.basis import Basis
from driftlab.spectral.drift import Drift, measure
from driftlab.spectral.measures import MEASURES, PRESETS, Measure, Plan

__all__ = ["MEASURES", "PRESETS", "Basis", "Drift", "Measure", "Plan", "measure"]
