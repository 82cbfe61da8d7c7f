"""Results folders with numbers made up by a rule, so that figures are tested without weights."""

import math

import pandas as pd
import pytest

from driftlab.results import ResultsDir
from driftlab.tables import SPECTRAL, summarise

ROLES = ("self_attn.q_proj", "mlp.down_proj")


def rows(run, labels, size):
    for order, label in enumerate(labels, 1):
        stage, _, step = label.partition("@")
        for layer in range(3):
            for i, role in enumerate(ROLES):
                value = size * order * (1 + layer + 0.5 * i)
                yield {
                    "run": run,
                    "label": label,
                    "stage": stage,
                    "step": int(step or 0),
                    "order": order,
                    "matrix": f"model.layers.{layer}.{role}.weight",
                    "layer": layer,
                    "role": role,
                    "numel": 96 * (1 + i),
                    "status": "ok",
                    "nss": value,
                    "nss_error": 1e-9,
                    "nss_null": 0.9 * value,
                    "max_angle_left_deg": 1e4 * value,
                    "mask_overlap": 1 - 100 * value,
                    "mask_update_iou": 0.05,
                    "mask_update_iou_random": 0.06,
                }


@pytest.fixture
def store(tmp_path):
    """Write a results folder from rows and return it."""

    def write(*parts, out="out", **change):
        frame = pd.DataFrame([row | change for part in parts for row in part], columns=SPECTRAL.names)
        results = ResultsDir.create(tmp_path / out, command="svd", config={})
        results.write_table("spectral", frame)
        results.write_table("spectral_summary", summarise(frame))
        return results

    return write


@pytest.fixture
def two_runs(store):
    return store(
        rows("GRPO", ["math@10", "math@20", "code@10"], 1e-5), rows("SDPO", ["math@10", "math@20", "code@10"], 3e-5)
    )


@pytest.fixture
def make_rows():
    return rows


@pytest.fixture
def nan():
    return math.nan
