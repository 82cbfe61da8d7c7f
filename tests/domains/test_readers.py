"""Every form of data file, the damaged ones too."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftlab.domains.datafiles import Records
from driftlab.domains.readers import read, splits
from driftlab.errors import DataError

ROWS = [{"prompt": "one", "n": 1}, {"prompt": "zwei ü", "n": 2}, {"prompt": "three", "n": 3}]
TEXTS = [row["prompt"] for row in ROWS]


def lines(rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def table():
    return pa.table({"prompt": TEXTS, "n": [1, 2, 3]})


def write_csv(path, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, ["prompt", "n"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)


def write_arrow(path, stream=True):
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, make(sink, table().schema) as writer:
        writer.write_table(table())


FORMS = {
    "lines.jsonl": lambda p: p.write_text(lines(ROWS), encoding="utf-8"),
    "lines.ndjson": lambda p: p.write_text(lines(ROWS), encoding="utf-8"),
    "lines_under_json.json": lambda p: p.write_text(lines(ROWS), encoding="utf-8"),
    "lines_with_gaps.json": lambda p: p.write_text("\n" + lines(ROWS).replace("\n", "\n\n"), encoding="utf-8"),
    "list.json": lambda p: p.write_text(json.dumps(ROWS, indent=1), encoding="utf-8"),
    "list.jsonl": lambda p: p.write_text(json.dumps(ROWS), encoding="utf-8"),
    "columns.json": lambda p: p.write_text(json.dumps({"prompt": TEXTS, "n": [1, 2, 3]}), encoding="utf-8"),
    "wrapped.json": lambda p: p.write_text(json.dumps({"version": "1", "data": ROWS}), encoding="utf-8"),
    "only_data.json": lambda p: p.write_text(json.dumps({"data": ROWS}), encoding="utf-8"),
    "by_id.json": lambda p: p.write_text(json.dumps({str(r["n"]): r for r in ROWS}), encoding="utf-8"),
    "bom.json": lambda p: p.write_bytes(b"\xef\xbb\xbf" + lines(ROWS).encode()),
    "utf16.jsonl": lambda p: p.write_text(lines(ROWS), encoding="utf-16"),
    "packed.jsonl.gz": lambda p: p.write_bytes(gzip.compress(lines(ROWS).encode())),
    "packed_without_saying.json": lambda p: p.write_bytes(gzip.compress(lines(ROWS).encode())),
    "table.csv": write_csv,
    "table.tsv": lambda p: write_csv(p, "\t"),
    "table.parquet": lambda p: pq.write_table(table(), p),
    "table_without_suffix": lambda p: pq.write_table(table(), p),
    "stream.arrow": write_arrow,
    "file.arrow": lambda p: write_arrow(p, stream=False),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_records(tmp_path, name):
    FORMS[name](tmp_path / name)
    found = read(tmp_path / name)
    assert isinstance(found, Records)
    assert found.size == 3
    assert found.columns == ("prompt", "n")
    assert found.column("prompt") == TEXTS
    assert [int(n) for n in found.column("n")] == [1, 2, 3]


@pytest.mark.parametrize("name", ["lines.txt", "plain", "packed.txt.gz"])
def test_a_text_file_is_one_text_a_line(tmp_path, name):
    raw = b"one\n\nthree\n"
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    found = read(tmp_path / name)
    assert found.columns == ()
    assert found.column("") == ["one", "", "three"]


def test_a_list_of_strings_and_a_list_of_chats_have_no_columns(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(TEXTS))
    assert read(tmp_path / "s.json").column("") == TEXTS
    chats = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    (tmp_path / "c.json").write_text(json.dumps(chats))
    assert read(tmp_path / "c.json").column("") == chats


def test_one_chat_object_is_one_record(tmp_path):
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "c.json").write_text(json.dumps(chat))
    assert read(tmp_path / "c.json").column("messages") == [chat["messages"]]


def test_rows_of_different_keys_keep_their_places(tmp_path):
    (tmp_path / "m.jsonl").write_text(lines([{"a": 1}, "bare", {"b": 2}]))
    found = read(tmp_path / "m.jsonl")
    assert found.columns == ("a", "b")
    assert found.column("b") == [None, None, 2]


def test_arrays(tmp_path):
    x = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", first=x, label=np.arange(3))
    np.testing.assert_array_equal(read(tmp_path / "x.npy")[""], x)
    assert set(read(tmp_path / "x.npz")) == {"first", "label"}


def test_pickled_arrays_are_not_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"x\.npy: expected a NumPy file, found a damaged one: Object arrays"):
        read(tmp_path / "x.npy")


# -- folders ------------------------------------------------------------


def shard(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, TEXTS, strict=False):
        pq.write_table(pa.table({"prompt": [text]}), folder / name)
    return folder


def test_shards_are_joined_in_order(tmp_path):
    folder = shard(tmp_path / "d", *(f"train-0000{i}-of-00003.parquet" for i in range(3)))
    assert read(folder).column("prompt") == TEXTS
    assert read(folder, "train").size == 3
    assert read(shard(tmp_path / "e" / "data", "part-0.parquet", "part-1.parquet").parent).column("prompt") == TEXTS[:2]


def test_a_split_must_be_named_where_there_are_several(tmp_path):
    folder = shard(tmp_path / "d", "train-00000-of-00001.parquet", "test-00000-of-00001.parquet")
    assert splits(folder) == ["test", "train"]
    assert read(folder, "test").column("prompt") == [TEXTS[1]]
    with pytest.raises(DataError, match=r"found 2 splits \(test, train\). Name one: PATH::SPLIT"):
        read(folder)
    with pytest.raises(DataError, match="expected split 'dev', found test, train"):
        read(folder, "dev")


def save_to_disk(folder, files=2, indices=None):
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{files:05d}.arrow" for i in range(files)]
    for i, name in enumerate(names):
        part = pa.table({"prompt": [TEXTS[i]]})
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_indices_data_files": indices}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def test_saved_data_sets(tmp_path):
    save_to_disk(tmp_path / "one")
    assert read(tmp_path / "one").column("prompt") == TEXTS[:2]
    with pytest.raises(DataError, match="expected split 'test', found a data set saved without splits"):
        read(tmp_path / "one", "test")
    for name in ("train", "test"):
        save_to_disk(tmp_path / "many" / name, files=1 if name == "test" else 3)
    (tmp_path / "many" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert splits(tmp_path / "many") == ["train", "test"]
    assert read(tmp_path / "many", "test").size == 1
    with pytest.raises(DataError, match="found 2 splits"):
        read(tmp_path / "many")


def test_a_saved_selection_is_refused_with_the_way_out(tmp_path):
    save_to_disk(tmp_path / "d", indices=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match=r"index of selected rows.*flatten_indices"):
        read(tmp_path / "d")


# -- what cannot be read --------------------------------------------------


def broken(name, content):
    def make(folder: Path):
        (folder / name).write_bytes(content)
        return folder / name

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f / "none.jsonl", r"none\.jsonl: expected a data file or folder, found nothing there"),
        (broken("e.jsonl", b""), r"e\.jsonl: expected data, found an empty file"),
        (broken("b.json", b" \n\n"), r"b\.json: expected data, found only blank lines"),
        (broken("l.json", b"[]"), r"l\.json: expected records, found an empty list"),
        (broken("s.json", b"3"), r"s\.json: expected a JSON list or object, found a single int"),
        (broken("x.json", b"nonsense"), r"x\.json: expected JSON, found Expecting value"),
        (broken("h.jsonl", b'{"a": 1}\n{"a": '), r"h\.jsonl: line 2 is no JSON"),
        (broken("p.parquet", b"PAR1 and no more"), r"p\.parquet: expected a Parquet file, found a damaged one"),
        (broken("q.parquet", b"something else"), r"q\.parquet: expected a Parquet file, found one that does not begin"),
        (broken("a.arrow", b"something else"), r"a\.arrow: expected a Arrow file, found a damaged one"),
        (broken("n.npy", b"\x93NUMPY"), r"n\.npy: expected a NumPy file, found a damaged one"),
        (broken("n.npz", b"PK\x03\x04broken"), r"n\.npz: expected a NumPy file, found a damaged one"),
        (broken("g.jsonl.gz", b"\x1f\x8b\x08cut"), r"g\.jsonl\.gz: expected a gzip file, found a damaged one"),
        (broken("u.jsonl", b'{"a": "\xff\xfa"}'), r"u\.jsonl: expected UTF-8 text, found byte 0xff at position 7"),
        (broken("c.csv", b"a,b\n1,2\n1,2,3\n"), r"c\.csv: record 2 has more cells than the header's 2"),
        (broken("w.docx", b"words"), r"w\.docx: its form is unknown: expected one of \.jsonl"),
    ],
)
def test_damage_is_named(tmp_path, make, message):
    with pytest.raises(DataError, match=message):
        read(make(tmp_path))


def test_a_hub_name_is_not_looked_up(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"owner/data: .* Data sets are read from local files: download it first"):
        read(Path("owner/data"))


def test_an_empty_folder_and_a_split_of_a_file(tmp_path):
    with pytest.raises(DataError, match=r"expected data files, found none of \.parquet"):
        read(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match="expected a folder with split 'test', found a single file"):
        read(tmp_path / "a.txt", "test")
