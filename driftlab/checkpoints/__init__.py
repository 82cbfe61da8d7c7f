"""Checkpoint files of one model, as an ordered sequence of named matrices that are read one at a time."""

from driftlab.checkpoints.sequence import Checkpoint, CheckpointSequence, Run
from driftlab.checkpoints.tensorfile import TensorInfo

__all__ = ["Checkpoint", "CheckpointSequence", "Run", "TensorInfo"]
