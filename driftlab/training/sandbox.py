"""Run model-written Python in a process of its own, with limits; opt-in only.

This bounds accidents (endless loops, memory, forks); it is no defence against hostile code: run such models in a
container.
"""

import os
import signal
import subprocess
import sys
import tempfile

from driftlab.training.tasks import Verdict

SECONDS, MEMORY_BYTES, PROCESSES = 5, 512 * 2**20, 0

# Limits are set by the child itself, after the interpreter has started and before any code of the model.
_PRELUDE = """
import resource as _r
_r.setrlimit(_r.RLIMIT_CPU, ({seconds}, {seconds}))
_r.setrlimit(_r.RLIMIT_AS, ({memory}, {memory}))
_r.setrlimit(_r.RLIMIT_FSIZE, (2**20, 2**20))
try:
    _r.setrlimit(_r.RLIMIT_NPROC, ({processes}, {processes}))
except (ValueError, OSError):
    pass
del _r
"""
_DONE = "driftlab: tests passed"


def run_tests(code: str, tests: str, *, seconds: int = SECONDS, memory: int = MEMORY_BYTES) -> Verdict:
    """Run ``code`` and then ``tests``; the score is 1 if neither raises.

    A sandbox that cannot start gives the score None ("unknown"), never 0: the response is not to blame.
    """
    prelude = _PRELUDE.format(seconds=seconds, memory=memory, processes=PROCESSES)
    program = f"{prelude}\n{code}\n{tests}\nprint({_DONE!r})\n"
    with tempfile.TemporaryDirectory(prefix="driftlab-") as folder:
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-c", program],
                cwd=folder,
                env={"PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return Verdict(None, False, f"The sandbox did not start: {error.strerror}.")
        try:
            out, errors = child.communicate(timeout=seconds + 1)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return Verdict(0.0, False, f"The program took more than {seconds} seconds.")
    if child.returncode == 0 and out.decode(errors="replace").rstrip().endswith(_DONE):
        return Verdict(1.0, True)
    lines = errors.decode(errors="replace").strip().splitlines()
    return Verdict(0.0, False, lines[-1][:300] if lines else "The program stopped before its tests were done.")
