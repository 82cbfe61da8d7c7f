"""Figures and reports are made from stored results where PyTorch is not installed."""

import subprocess
import sys

CODE = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "sentence_transformers", "safetensors"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from driftlab_analyses import FIGURES
for name in FIGURES:
    importlib.import_module(f"driftlab_analyses.{name}")
from driftlab_cli.main import run
folder, out = sys.argv[1:]
assert run(["figures", folder, "-o", f"{out}/figures", "-q"]) == 0
assert run(["report", folder, "-o", f"{out}/report.html", "-q"]) == 0
assert not [name for name in sys.modules if name.split(".")[0] == "torch"]
"""


def test_figures_and_report_without_torch(two_runs, tmp_path):
    command = [sys.executable, "-c", CODE, str(two_runs.path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figures" / "parameter_drift.png").is_file()
    assert (tmp_path / "report.html").stat().st_size > 10_000
