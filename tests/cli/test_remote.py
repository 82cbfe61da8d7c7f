"""Commands on addresses, as a user runs them: a web server's run gives what the folder gives, one sentence if not."""

import json

import pandas as pd
import pytest
from webserver import Server

from driftlab.checkpoints import attempts
from driftlab_cli.main import run

pytest.importorskip("aiohttp")
EXACT = ("--method", "exact", "--device", "cpu", "--threads", "1")


@pytest.fixture
def server(make, monkeypatch):
    monkeypatch.setattr(attempts, "WAITS", (0.0, 0.0, 0.0))
    make.run("r", {"math@10": 10, "math@20": 20})
    with Server(make.root) as found:
        yield found


@pytest.fixture
def call(make, capsys):
    def run_command(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


def spectral(make, out):
    return pd.read_parquet(make.root / out / "spectral.parquet").drop(columns="seconds")


def test_ls_shows_what_the_folder_shows(make, server, call):
    found = {}
    for source in (make.root / "r", f"{server.url}/r"):
        code, out, err = call("ls", f"a={source}", "--json", "--check", "values")
        assert (code, err) == (0, "")
        found[str(source)] = json.loads(out)
        for row in found[str(source)]["rows"]:
            assert row.pop("path").startswith(str(source))
    here, there = found.values()
    assert here == there


def test_svd_with_workers_and_reading_ahead(make, server, call):
    assert call("svd", f"a={make.root / 'r'}", *EXACT, "-o", make.root / "here")[0] == 0
    options = (*EXACT, "--workers", 2, "--prefetch", 0.01, "--io", "mmap", "--basis-cache", make.root / "bases")
    assert call("svd", f"a={server.url}/r", *options, "-o", make.root / "there")[0] == 0
    pd.testing.assert_frame_equal(spectral(make, "there"), spectral(make, "here"), check_exact=True)
    manifest = json.loads((make.root / "there/manifest.json").read_text())["commands"]["svd"]
    assert manifest["read_megabytes_per_second"] > 0
    assert manifest["config"]["base"]["path"] == f"{server.url}/r/checkpoints/000000-base"


def test_watch_measures_what_lies_there(make, server, call):
    code, _, _ = call("watch", f"{server.url}/r", "-o", make.root / "w", "--until-idle", 1, "--poll", 0.1)
    assert code == 0
    assert len(pd.read_parquet(make.root / "w/spectral.parquet")["label"].unique()) == 2


def test_a_dry_run_reads_headers_and_one_tensor(make, server, call):
    code, out, _ = call("svd", f"{server.url}/r", "--dry-run", "--json", "--device", "cpu", "-o", make.root / "out")
    assert code == 0
    assert json.loads(out)["rows"][0]["crowding"] >= 1
    files = list((make.root / "r").rglob("*.safetensors"))
    headers = sum(8 + int.from_bytes(file.read_bytes()[:8], "little") for file in files)
    assert server.sent(".safetensors") == headers + 20 * 12 * 2  # the largest tensor, once


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("svd", "{url}/gone", "-o", "out"), 1, "/gone: expected a run folder or checkpoint, found nothing."),
        (("svd", "{url}/r?key=1", "-o", "out"), 2, "expected a plain address, found one with a password, a query or"),
        (("svd", "{url}/r", "-o", "s3://bucket/out"), 2, "expected a folder on this machine, found an address."),
        (("ls", "s3://bucket/run"), 1, "expected a client for s3:// addresses, found none"),
        (("policy", "{url}/r", "-o", "out"), 2, "expected a model on this machine, which can be run, found an address"),
    ],
)
def test_one_sentence(make, server, call, monkeypatch, arguments, code, message):
    monkeypatch.chdir(make.root)
    found, out, err = call(*(text.format(url=server.url) for text in arguments))
    assert (found, out) == (code, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (make.root / "out").exists()
