"""The results folder: whole files or none, refused unless asked, and nothing of others deleted."""

import json

import pandas as pd
import pyarrow as pa
import pytest

from driftlab.errors import ResultsError, UsageError
from driftlab.files import replacing, write_text
from driftlab.results import ResultsDir

SCHEMA = pa.schema([("unit", pa.string()), ("value", pa.float64())])


def create(path, config=None, **options):
    settings = {"command": "svd", "config": {"seed": 0} if config is None else config, "tables": ("spectral",)}
    return ResultsDir.create(path, **settings | options)


def rows(unit, value=1.0):
    return pa.Table.from_pylist([{"unit": unit, "value": value}], schema=SCHEMA)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "deep" / "out"


def test_a_new_folder_gets_a_manifest(out):
    create(out, argv=["svd", "x"])
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema_version"] == 1
    assert set(manifest["host"]) == {"system", "python", "cpus"}
    section = manifest["commands"]["svd"]
    assert (section["argv"], section["config"], section["end"]) == (["svd", "x"], {"seed": 0}, None)
    assert {"torch", "numpy", "pyarrow"} <= set(section["versions"])


def test_finish_records_the_end(out):
    results = create(out)
    results.finish(rows={"ok": 1})
    section = results.manifest()["commands"]["svd"]
    assert section["end"] >= section["start"]
    assert section["rows"] == {"ok": 1}


def test_an_empty_folder_is_as_good_as_none(out):
    out.mkdir(parents=True)
    create(out)


@pytest.mark.parametrize("file", ["notes.txt", "manifest.json"])
def test_a_folder_with_something_in_it_is_refused(out, file):
    out.mkdir(parents=True)
    (out / file).write_text("mine")
    with pytest.raises(
        ResultsError, match=r"expected an empty or new folder, found 1 entries\. Give --resume .*--force"
    ):
        create(out)
    assert (out / file).read_text() == "mine"


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ResultsError, match="expected a folder, found a file"):
        create(tmp_path / "out")
    with pytest.raises(ResultsError, match="cannot be made"):
        create(tmp_path / "out" / "inner")


def test_resume_and_force_exclude_each_other(out):
    with pytest.raises(UsageError, match="expected one of them, found both"):
        create(out, resume=True, force=True)


def test_force_replaces_our_tables_and_nothing_else(out):
    results = create(out)
    results.write_table("spectral", rows("old"))
    results.write_part("spectral", "a", rows("a"))
    (out / "spectral" / "mine.txt").write_text("mine")
    (out / "mine").mkdir()
    (out / "mine" / "part-1.parquet").write_text("mine")
    (out / "other.parquet").write_text("mine")
    again = create(out, force=True)
    assert not again.has("spectral")
    assert not again.has_part("spectral", "a")
    for file in ("spectral/mine.txt", "mine/part-1.parquet", "other.parquet"):
        assert (out / file).read_text() == "mine"


def test_force_does_not_touch_a_foreign_manifest(out):
    out.mkdir(parents=True)
    (out / "manifest.json").write_text('{"mine": 1}')
    with pytest.raises(ResultsError, match=r"expected a driftlab manifest, found something else\. Choose another"):
        create(out, force=True)
    assert (out / "manifest.json").read_text() == '{"mine": 1}'


def test_force_leaves_other_commands_alone(out):
    create(out)
    create(out, command="mmd", tables=("mmd",), resume=True).finish()
    before = create(out, force=True).manifest()["commands"]["mmd"]
    assert before["end"] is not None


def test_resume_keeps_what_is_there(out):
    create(out).write_part("spectral", "a", rows("a"))
    again = create(out, resume=True)
    assert again.has_part("spectral", "a")
    assert len(again.manifest()["commands"]["svd"]["resumed"]) == 1


def test_resume_in_a_new_folder_just_starts(out):
    create(out, resume=True)
    assert ResultsDir.open(out).manifest()["commands"]["svd"]["end"] is None


def test_resume_does_not_claim_tables_without_a_record(out):
    create(out, command="mmd").write_table("spectral", rows("whose"))
    with pytest.raises(ResultsError, match=r"it has the table spectral, but no record of a svd run\. Give --force"):
        create(out, resume=True)
    assert ResultsDir.open(out).has("spectral")


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"seed": 0}, {"seed": 1}, "seed = 0, this run has 1."),
        ({"seed": 0}, {}, "seed = 0, this run has null."),
        ({}, {"rank": 8}, "rank = null, this run has 8."),
        ({"measures": ["a", "b"]}, {"measures": ("a",)}, 'measures = ["a", "b"], this run has ["a"].'),
        ({"checkpoints": [{"header": "x"}, {"header": "y"}]}, {"checkpoints": [{"header": "x"}, {"header": "z"}]},
         'checkpoints[1].header = "y", this run has "z".'),
        ({"base": {"path": "/a", "header": "x"}}, {"base": {"path": "/b", "header": "x"}},
         'base.path = "/a", this run has "/b".'),
        ({"runs": list("abcd")}, {"runs": list("abcde")}, "runs = 4 entries, this run has 5 entries."),
        ({"include": None}, {"include": ["x" * 200]}, 'include = null, this run has ["xxx'),
    ],
)  # fmt: skip
def test_resume_with_other_settings_names_the_setting(out, before, now, words):
    create(out, before)
    with pytest.raises(ResultsError) as caught:
        create(out, now, resume=True)
    message = str(caught.value)
    assert message.startswith(f"Cannot resume {out}: it was made with {words}")
    assert message.endswith("Use the same settings, another --out, or --force to start again.")
    assert len(message) < 400 + len(str(out))


def test_settings_are_compared_as_json_reads_them_back(out):
    create(out, {"measures": ("a", "b"), "rank": None, "path": out})
    create(out, {"measures": ["a", "b"], "rank": None, "path": str(out)}, resume=True)


# -- reading ------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(
        ResultsError, match=r"expected a results folder with manifest\.json, found none\. Give the folder"
    ):
        ResultsDir.open(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"commands": []}', "\udcff"])
def test_a_manifest_that_is_none(out, content):
    out.mkdir(parents=True)
    (out / "manifest.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ResultsError, match="expected a driftlab manifest"):
        ResultsDir.open(out)


def test_another_schema_version_is_refused_for_reading_and_writing(out):
    results = create(out)
    manifest = results.manifest() | {"schema_version": 99}
    (out / "manifest.json").write_text(json.dumps(manifest))
    for attempt in (lambda: ResultsDir.open(out), lambda: create(out, resume=True), lambda: create(out, force=True)):
        with pytest.raises(ResultsError, match="expected schema version 1, found 99"):
            attempt()


def test_tables_come_back_as_written(out):
    results = create(out)
    results.write_table("spectral", rows("a", 0.1))
    results.write_table("more", pd.DataFrame({"x": [1, 2]}))
    assert results.table("spectral").to_dict("records") == [{"unit": "a", "value": 0.1}]
    assert list(ResultsDir.open(out).table("more")["x"]) == [1, 2]


def test_a_missing_and_a_damaged_table(out):
    results = create(out)
    with pytest.raises(ResultsError, match="table 'spectral' is not there"):
        results.table("spectral")
    (out / "spectral.parquet").write_bytes(b"PAR1junk")
    with pytest.raises(ResultsError, match=r"spectral\.parquet: expected a Parquet table"):
        results.table("spectral")


def test_csv_and_json(out):
    results = create(out)
    results.write_table("spectral", rows("a", 1 / 3))
    assert results.write_csv("spectral").read_bytes() == b"unit,value\na,0.3333333333333333\n"
    assert json.loads(results.write_json("mmd", {"gamma": 1.5}).read_text()) == {"gamma": 1.5}


# -- parts --------------------------------------------------------------------------------------------------------

UNITS = ["model.layers.10.w", "model.layers.9.w", "a/b:c", "a_b_c", "x" * 300, "mit Ümlaut"]


def test_parts_merge_in_the_order_asked_for(out):
    results = create(out)
    for unit in reversed(UNITS):
        results.write_part("spectral", unit, rows(unit))
    assert results.merge_parts("spectral", UNITS, SCHEMA)["unit"].to_pylist() == UNITS
    assert results.merge_parts("spectral", [], SCHEMA).schema == SCHEMA
    results.drop_parts("spectral")
    assert not (out / "spectral").exists()


@pytest.mark.parametrize("content", [None, b"", b"junk"], ids=["missing", "empty", "junk"])
def test_a_part_that_cannot_be_read_is_never_left_out_silently(out, content):
    results = create(out)
    file = results.write_part("spectral", "a", rows("a"))
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ResultsError, match="expected the rows of a, found no readable Parquet file"):
        results.merge_parts("spectral", ["a"], SCHEMA)


def test_a_killed_write_leaves_no_part(out):
    results = create(out)
    results.write_part("spectral", "b", rows("b"))
    (out / "spectral" / ".part-a.parquet.77.tmp").write_bytes(b"half")
    assert not results.has_part("spectral", "a")
    results.drop_parts("spectral")
    assert not (out / "spectral").exists()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    file = write_text(tmp_path / "a.txt", "old")

    def half():
        with replacing(file) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        half()
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("a.txt", "old")]
