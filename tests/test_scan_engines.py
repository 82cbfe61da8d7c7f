"""A scan by several workers: the table of a scan by one, to the last bit."""

import pandas as pd
import pytest
import torch

from driftlab.checkpoints import CheckpointSequence
from driftlab.engines import Finished, LocalEngine
from driftlab.results import ResultsDir
from driftlab.scan import TABLES, describe, scan
from driftlab.spectral import Plan

Q = "model.layers.0.self_attn.q_proj.weight"


def measure(out, paths, engine=None, **options):
    sequence = CheckpointSequence.open([str(path) for path in paths[1:]], paths[0])
    plan = Plan(seed=5)
    results = ResultsDir.create(out, command="svd", config=describe(sequence, plan), tables=TABLES)
    outcome = scan(sequence, plan, results, device="cpu", engine=engine, **options)
    return outcome, results.table("spectral").drop(columns="seconds")


@pytest.fixture
def large(make):
    """Return a base and two checkpoints, with two matrices large enough to be tracked."""
    names = [f"model.layers.{i}.up_proj.weight" for i in range(2)]
    draw = lambda seed: torch.randn(136, 200, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    base = {name: draw(i) for i, name in enumerate(names)} | {"model.norm.weight": torch.ones(136)}
    paths = [make.folder("base", tensors={name: t.bfloat16() for name, t in base.items()})]
    for step in (1, 2):
        moved = {
            name: (t + 1e-3 * draw(10 * step)[: len(t), : t.shape[-1]]).bfloat16()
            for name, t in base.items()
            if t.ndim == 2
        }
        moved["model.norm.weight"] = torch.full((136,), 1 + 0.1 * step).bfloat16()
        paths.append(make.folder(f"checkpoint-{step}", tensors=moved))
    return paths


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_two_local_workers_give_the_table_of_this_process_to_the_last_bit(make, large):
    outcome, alone = measure(make.root / "alone", large)
    again, shared = measure(make.root / "shared", large, LocalEngine(2, 1))
    assert (alone["method"] == "tracked").any()
    assert again == outcome
    pd.testing.assert_frame_equal(shared, alone, check_exact=True)
    summaries = [ResultsDir.open(make.root / name).table("spectral_summary") for name in ("alone", "shared")]
    timeless = [table[table["measure"] != "seconds"].reset_index(drop=True) for table in summaries]
    pd.testing.assert_frame_equal(*timeless, check_exact=True)


class Loses:
    """An engine whose workers are lost over some units and do the others in this process."""

    workers, threads = 1, 1

    def __init__(self, *names):
        self.names = names

    def run(self, units, labour):
        with labour.start(0) as work:
            for unit in units:
                error = "its worker was lost 3 times (SIGKILL)" if unit.name in self.names else ""
                yield Finished(unit, None if error else work(unit.payload), error)


@pytest.mark.usefixtures("one_thread")
def test_a_matrix_given_up_has_rows_with_the_reason_and_the_others_their_numbers(make):
    paths = [make.folder("base"), make.folder("checkpoint-1", 1), make.folder("checkpoint-2", 2)]
    _, whole = measure(make.root / "whole", paths)
    outcome, table = measure(make.root / "out", paths, Loses(Q, "model.norm.weight"))
    lost = table["matrix"].isin([Q, "model.norm.weight"])
    assert (table.loc[lost, "status"] == "failed").all()
    assert (
        table.loc[lost, "reason"].unique()
        == ["its worker was lost 3 times (SIGKILL): measure this matrix alone (--include) with fewer --workers"]
    ).all()
    assert outcome.failed == 4
    pd.testing.assert_frame_equal(table[~lost], whole[~lost], check_exact=True)
    same = ["run", "label", "matrix", "role", "rows", "cols", "dtype", "order"]
    pd.testing.assert_frame_equal(table[same], whole[same])


def test_a_skipped_tensor_given_up_stays_skipped(make):
    tensors = make.tensors(1) | {"model.layers.0.self_attn.q_proj.weight": torch.zeros(3, 4)}
    paths = [make.folder("base"), make.folder("checkpoint-1", tensors=tensors)]
    _, table = measure(make.root / "out", paths, Loses(Q))
    row = table.set_index("matrix").loc[Q]
    assert (row["status"], row["reason"]) == ("skipped", "shape 8x12 in the base, 3x4 here")


def test_a_worker_of_another_version_is_refused(make):
    from driftlab.errors import DriftlabError
    from driftlab.units import Labour

    with (
        pytest.raises(DriftlabError, match=r"expected driftlab 9\.9 as in the driver, found"),
        Labour(Plan(), version="9.9").start(0),
    ):
        pass


def test_units_travel_light(make):
    import pickle

    from driftlab.units import slim

    paths = [make.folder("base"), *(make.folder(f"checkpoint-{i}", i) for i in (1, 2))]
    track = CheckpointSequence.open([str(p) for p in paths[1:]], paths[0]).tracks()[1]
    light = pickle.loads(pickle.dumps(slim(track)))
    assert [m.checkpoint.weights for m in light.members] == [None, None]
    assert [m.tensor for m in light.members] == [m.tensor for m in track.members]
    assert len(pickle.dumps(light)) < len(pickle.dumps(track)) / 2


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("options", [{"io": "mmap"}, {"prefetch": 1 << 20}, {"io": "mmap", "prefetch": 1 << 20}])
def test_the_way_of_reading_changes_no_bit_and_its_rate_is_kept(make, large, options):
    _, plain = measure(make.root / "plain", large)
    _, table = measure(make.root / "out", large, **options)
    pd.testing.assert_frame_equal(table, plain, check_exact=True)
    found = ResultsDir.open(make.root / "out").manifest()["commands"]["svd"]
    assert found["counts"]["read_bytes"] == 3 * 2 * (2 * 136 * 200 + 136)
    assert found["read_megabytes_per_second"] > 0


def test_files_are_read_from_start_to_end(make):
    from driftlab.units import in_file_order

    paths = [make.sharded("base"), make.folder("checkpoint-1", 1)]
    tracks = CheckpointSequence.open([str(paths[1])], paths[0]).tracks()
    places = [(track.base.file, track.base.start) for track in in_file_order(tracks)]
    assert places == sorted(places)
    assert places != [(track.base.file, track.base.start) for track in tracks]
