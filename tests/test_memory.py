"""A scan needs the basis, two matrices and 300 MB, not the model."""

import importlib.util
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "scan.py"


@pytest.fixture
def memory():
    spec = importlib.util.spec_from_file_location("benchmark_scan", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.memory


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "auto"])
def test_the_peak_stays_within_basis_two_matrices_and_300_mb(memory, method):
    found = memory(rows=768, cols=2048, matrices=2, checkpoints=2, method=method, null="sign")
    assert found["used_mb"] <= found["allowed_mb"], found


@pytest.mark.slow
def test_the_peak_does_not_grow_with_the_model(memory):
    few, many = (memory(256, 768, matrices=count, checkpoints=3, method="auto", null="none") for count in (2, 40))
    model = 40 * 4 * 256 * 768 * 2 / 1e6
    assert many["used_mb"] - few["used_mb"] < 0.5 * model, (few, many)
