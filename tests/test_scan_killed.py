"""Scans whose processes are killed, as a cluster kills them: the table is that of an undisturbed scan."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
import torch

DEADLINE = 60.0
SVD = "import sys; from driftlab_cli.main import run; sys.exit(run(['svd', *sys.argv[1:]]))"


@pytest.fixture
def paths(make):
    """Return a base and two checkpoints of twelve matrices that take a moment each."""
    found = []
    for step in range(3):
        tensors = {}
        for i in range(12):
            draw, move = (
                torch.randn(192, 320, generator=torch.Generator().manual_seed(s)) for s in (i, 100 * step + i)
            )
            tensors[f"model.layers.{i}.up_proj.weight"] = (draw + (1e-3 * move if step else 0.0)).bfloat16()
        found.append(make.folder(f"checkpoint-{step}", tensors=tensors))
    return [str(path) for path in found]


@pytest.fixture
def start():
    """Start the command in a process of its own, one thread a worker; none outlives the test."""
    begun = []

    def call(out, paths, *options):
        arguments = [*paths[1:], "--base", paths[0], "-o", str(out), "-q", "--device", "cpu", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        begun.append(
            subprocess.Popen([sys.executable, "-c", SVD, *arguments], env=environment, stdout=subprocess.DEVNULL)
        )
        return begun[-1]

    yield call
    for process in begun:
        process.kill()
        process.wait()


def finish(process):
    assert process.wait(DEADLINE) == 0


def spectral(out):
    return pd.read_parquet(out / "spectral.parquet").drop(columns="seconds")


def until(condition):
    """Wait for a condition and return its value."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    return found


def parts(out):
    return list((out / "spectral").glob("part-*.parquet"))


@pytest.fixture
def undisturbed(make, paths, start):
    finish(start(make.root / "alone", paths))
    return spectral(make.root / "alone")


def kill_worker_and_then_driver(make, paths, start, options, is_worker):
    """Kill one worker while it works, then the driver, and resume; return the table and what was done by then."""
    out = make.root / "killed"
    driver = start(out, paths, *options)
    until(lambda: parts(out) or driver.poll() is not None)
    assert driver.poll() is None
    worker = until(lambda: next(filter(is_worker, psutil.Process(driver.pid).children(recursive=True)), None))
    worker.kill()
    before = len(parts(out))
    until(lambda: len(parts(out)) > before)  # work goes on
    family = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    psutil.wait_procs(family, timeout=30)
    assert not [process for process in family if process.is_running() and is_worker(process)]  # none works on alone
    done = {file: file.stat().st_mtime_ns for file in parts(out)}
    assert 0 < len(done) < 12
    again = start(out, paths, *options, "--resume")
    finish(again)
    return spectral(out)


def is_local_worker(process):
    try:
        return any("spawn_main" in word for word in process.cmdline())
    except psutil.Error:
        return False


def is_ray_worker(process):
    try:
        title = process.cmdline()[0]
        return title.startswith("ray::model.")  # Ray names a worker after its task
    except (psutil.Error, IndexError):
        return False


@pytest.mark.slow
def test_local_worker_and_driver_killed(make, paths, start, undisturbed):
    options = ("--workers", "2", "--threads", "1")
    table = kill_worker_and_then_driver(make, paths, start, options, is_local_worker)
    pd.testing.assert_frame_equal(table, undisturbed, check_exact=True)


@pytest.mark.slow
def test_ray_worker_and_driver_killed(make, paths, start, undisturbed):
    pytest.importorskip("ray")
    options = ("--engine", "ray", "--workers", "2", "--threads", "1")
    table = kill_worker_and_then_driver(make, paths, start, options, is_ray_worker)
    pd.testing.assert_frame_equal(table, undisturbed, check_exact=True)


@pytest.mark.slow
def test_ray_gives_the_table_of_one_process(make, paths, start, undisturbed):
    pytest.importorskip("ray")
    finish(start(make.root / "ray", paths, "--engine", "ray", "--workers", "2", "--threads", "1"))
    pd.testing.assert_frame_equal(spectral(make.root / "ray"), undisturbed, check_exact=True)
    found = json.loads((make.root / "ray/manifest.json").read_text())["commands"]["svd"]
    assert (found["engine"], found["workers"], found["threads"]) == ("ray", 2, 1)
