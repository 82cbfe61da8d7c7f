"""The working memory is that of a tile, whatever the number of rows."""

import json
import subprocess
import sys

import pytest

_PROBE = """
import json, resource, sys
import numpy as np
from driftlab.domains.bandwidth import median_gamma
from driftlab.domains.mmd import measure_distances

rows, width = int(sys.argv[1]), 32
rng = np.random.default_rng(0)
vectors = {name: rng.normal(size=(rows // 2, width)).astype(np.float32) for name in "ab"}
for x in vectors.values():
    x /= np.linalg.norm(x, axis=1, keepdims=True)
small = {name: x[:200] for name, x in vectors.items()}
measure_distances(small, 1.0, permutations=19)  # libraries load here
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
gamma = median_gamma(vectors)
pair = measure_distances(vectors, gamma, permutations=19).pairs[0]
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"grown_mb": (after - before) / 1024, "n": pair.n_left, "value": pair.mmd2_u}))
"""


@pytest.mark.slow
def test_fifty_thousand_rows_fit_where_their_kernel_matrix_would_take_ten_gigabytes():
    done = subprocess.run([sys.executable, "-c", _PROBE, "50000"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["n"] == 25_000
    assert abs(found["value"]) < 1e-3
    assert found["grown_mb"] < 400  # 50,000 x 50,000 float32 would be 10,000 MB
