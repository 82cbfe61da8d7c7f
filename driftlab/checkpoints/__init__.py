"""Checkpoint files of one model, as an ordered sequence of named matrices that are read one at a time."""

from driftlab.checkpoints.sequence import CheckpointSequence
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.tracks import Checkpoint, Run

__all__ = ["Checkpoint", "CheckpointSequence", "Run", "TensorInfo"]
