"""Work for engines to hand out, in a module that worker processes can import."""

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from driftlab.errors import DataError


@dataclass(frozen=True)
class Toil:
    """Squares numbers; what else a payload asks for is told by its first word."""

    folder: str = ""

    @contextmanager
    def start(self, worker):
        yield self.work

    def work(self, payload):
        kind, value = payload
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "die once" and not self._seen(value):
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "refuse":
            raise DataError(f"{value}: expected less.", "Ask for less.")
        if kind == "break":
            raise KeyError(value)
        if kind == "threads":
            return os.environ["OMP_NUM_THREADS"]
        if kind == "pid":
            return os.getpid()
        return value**2

    def _seen(self, value):
        mark = Path(self.folder) / f"seen-{value}"
        if mark.exists():
            return True
        mark.touch()
        return False


@dataclass(frozen=True)
class StillBorn:
    """Cannot even begin."""

    @contextmanager
    def start(self, worker):
        os.kill(os.getpid(), signal.SIGKILL)
        yield
