"""Which texts become a domain, and what is counted on the way."""

import json

import numpy as np
import pytest

from driftlab.domains.columns import text_of
from driftlab.domains.specs import DomainSpec, parse_spec, read_manifest
from driftlab.domains.texts import load_domains, overlaps
from driftlab.errors import DataError, UsageError


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path):
    a = write(tmp_path / "a.jsonl", [{"prompt": f"alpha {i}", "kind": i % 3} for i in range(50)])
    b = write(tmp_path / "b.jsonl", [{"prompt": f"beta {i}", "kind": i % 2} for i in range(40)])
    return [DomainSpec("a", a), DomainSpec("b", b)]


# -- specifications ------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m=x.jsonl", ("m", "x.jsonl", "", "", "")),
        ("m=x.jsonl::q", ("m", "x.jsonl", "", "q", "")),
        ("m=x::test::q", ("m", "x", "test", "q", "")),
        ("m=x::::q", ("m", "x", "", "q", "")),
        ("Math/AIME=dir/x.csv", ("AIME", "dir/x.csv", "", "", "Math")),
        ("m=a=b.txt", ("m", "a=b.txt", "", "", "")),
    ],
)
def test_a_specification_is_read(text, expected):
    spec = parse_spec(text)
    assert (spec.name, str(spec.path), spec.split, spec.column, spec.group) == expected


def test_a_single_part_is_a_split_where_the_folder_has_it(tmp_path):
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "test.jsonl", [{"q": "x"}])
    assert parse_spec(f"m={tmp_path}/d::test").split == "test"
    assert parse_spec(f"m={tmp_path}/d::q").column == "q"


@pytest.mark.parametrize("text", ["x.jsonl", "=x.jsonl", "m=", "m=x::a::b::c"])
def test_a_bad_specification_is_shown(text):
    with pytest.raises(UsageError, match=f"Domain '{text}': expected NAME=PATH"):
        parse_spec(text)


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_manifest_names_many_domains(tmp_path, suffix):
    file = tmp_path / f"domains{suffix}"
    if suffix == ".toml":
        file.write_text(
            '[domains.AIME]\npath = "x.jsonl"\ncolumn = "q"\ngroup = "Math"\n[domains.B]\npath = "/b.csv"\n'
        )
    else:
        entries = {"AIME": {"path": "x.jsonl", "column": "q", "group": "Math"}, "B": {"path": "/b.csv"}}
        file.write_text(json.dumps({"domains": entries}))
    one, two = read_manifest(file)
    assert (one.name, one.path, one.column, one.group) == ("AIME", tmp_path / "x.jsonl", "q", "Math")
    assert str(two.path) == "/b.csv"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not toml at all [", "expected a TOML or JSON file"),
        ("a = 1", r"expected tables \[domains.NAME\], found none"),
        ("[domains.a]\nfile = 'x'", r"domain 'a': expected path \[, split, column, group\], found file"),
    ],
)
def test_a_bad_manifest_is_named(tmp_path, content, message):
    (tmp_path / "m.toml").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_manifest(tmp_path / "m.toml")


# -- cells ------------------------------------------------------------

CHAT = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U1"},
    {"role": "assistant", "content": "A"},
    {"role": "user", "content": [{"type": "text", "text": "U2"}, {"type": "image", "url": "x"}]},
]


@pytest.mark.parametrize(
    ("cell", "roles", "expected"),
    [
        ("plain", ("user",), "plain"),
        (7, ("user",), "7"),
        (None, ("user",), ""),
        (float("nan"), ("user",), ""),
        (CHAT, ("user",), "U1\n\nU2"),
        (CHAT, ("system", "user"), "S\n\nU1\n\nU2"),
        (json.dumps(CHAT), ("user",), "U1\n\nU2"),
        ({"messages": CHAT}, ("user",), "U1\n\nU2"),
        ([{"from": "human", "value": "H"}, {"from": "gpt", "value": "G"}], ("user",), "H"),
        ([{"from": "human", "value": "H"}, {"from": "gpt", "value": "G"}], ("assistant",), "G"),
        ([{"role": "assistant", "content": "A"}], ("user",), ""),
        ("[not json", ("user",), "[not json"),
        ("[1, 2]", ("user",), "[1, 2]"),
        ({"a": 1}, ("user",), None),
        (["a", "b"], ("user",), None),
    ],
)
def test_what_a_cell_contributes(cell, roles, expected):
    assert text_of(cell, roles) == expected


# -- loading ----------------------------------------------------------


def test_texts_and_facts(files):
    a, b = load_domains(files)
    assert a.texts[:2] == ("alpha 0", "alpha 1")
    assert (a.group, b.group) == ("a", "b")
    assert a.facts["column"] == "prompt"
    assert a.facts["column_guessed"]
    assert (a.facts["rows"], a.facts["n"], a.facts["empty"], a.facts["duplicates"]) == (50, 50, 0, 0)


def test_a_column_can_be_named_and_a_wrong_one_shows_the_right_ones(files):
    assert load_domains(files, column="kind")[0].texts[:3] == ("0", "1", "2")
    with pytest.raises(DataError, match=r"Domain 'a' .*expected column 'question', found prompt, kind"):
        load_domains(files, column="question")


def test_no_guess_is_made_where_nothing_fits(tmp_path):
    rows = [{"x": "a", "y": "b"}] * 3
    specs = [DomainSpec("a", write(tmp_path / "a.jsonl", rows)), DomainSpec("b", write(tmp_path / "b.jsonl", rows))]
    with pytest.raises(DataError, match=r"cannot tell which column holds the texts: found x, y. Name it: PATH::COLUMN"):
        load_domains(specs)


def test_the_sample_is_random_seeded_and_not_the_head(files):
    a = load_domains(files, limit=10)[0]
    assert len(a.texts) == 10
    assert list(a.rows) == sorted(a.rows)
    assert list(a.rows) != list(range(10))
    assert a.texts == tuple(f"alpha {row}" for row in a.rows)
    np.testing.assert_array_equal(a.rows, load_domains(files[::-1], limit=10)[1].rows)  # order does not matter
    assert list(load_domains(files, limit=10, seed=1)[0].rows) != list(a.rows)
    drawn = {row for seed in range(40) for row in load_domains(files, limit=10, seed=seed)[0].rows}
    assert drawn == set(range(50))


def test_empty_and_unreadable_rows_are_counted(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": ""}, {"prompt": "  "}, {"prompt": None}, {"prompt": {"x": 1}}, {"prompt": "b"}]
    specs = [DomainSpec(name, write(tmp_path / f"{name}.jsonl", rows)) for name in "ab"]
    a = load_domains(specs)[0]
    assert a.texts == ("a", "b")
    assert list(a.rows) == [0, 5]
    assert (a.facts["empty"], a.facts["unreadable"], a.facts["unreadable_rows"]) == (3, 1, [4])


def test_duplicates_and_overlaps_are_counted_in_whole_files(tmp_path):
    a = write(tmp_path / "a.jsonl", [{"prompt": f"t {i // 2}"} for i in range(40)])
    b = write(tmp_path / "b.jsonl", [{"prompt": f" t  {i} "} for i in range(15, 40)])
    c = write(tmp_path / "c.jsonl", [{"prompt": f"u {i}"} for i in range(5)])
    loaded = load_domains([DomainSpec("a", a), DomainSpec("b", b), DomainSpec("c", c)], limit=3)
    assert [d.facts["duplicates"] for d in loaded] == [20, 0, 0]
    assert overlaps(loaded) == [{"left": "a", "right": "b", "shared": 5, "share_left": 0.25, "share_right": 0.2}]


def test_groups_are_numbered_by_label(files, tmp_path):
    a, b = load_domains(files, group_by="kind")
    assert list(a.clusters[:4]) == [0, 1, 2, 0]
    assert set(b.clusters) == {0, 1}
    with pytest.raises(DataError, match="expected column 'doc' to group by, found prompt, kind"):
        load_domains(files, group_by="doc")


def test_system_turns_are_dropped_by_default(tmp_path):
    specs = [DomainSpec(name, write(tmp_path / f"{name}.jsonl", [{"messages": CHAT}] * 2)) for name in "ab"]
    assert load_domains(specs)[0].texts[0] == "U1\n\nU2"
    assert load_domains(specs, roles=("system",))[0].texts[0] == "S"


def test_the_digest_is_of_the_content(files):
    a, b = load_domains(files)
    again = load_domains(files)[0]
    assert a.digest() == again.digest() != b.digest()
    assert load_domains(files, group_by="kind")[0].digest() != a.digest()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "one"}], "expected at least 2 texts in column 'prompt', found 1 in 1 rows .*says nothing about"),
        ([{"prompt": ""}] * 3, r"found 0 in 3 rows \(3 empty, 0 no text\). Name another column"),
        ([{"prompt": {"a": 1}}] * 3, r"found 0 in 3 rows \(0 empty, 3 no text\)"),
    ],
)
def test_too_few_texts_are_refused(files, tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        load_domains([files[0], DomainSpec("x", write(tmp_path / "x.jsonl", rows))])


def test_usage_is_checked(files):
    with pytest.raises(UsageError, match="Expected at least two domains, found 1"):
        load_domains(files[:1])
    with pytest.raises(UsageError, match="Two domains are called 'a'"):
        load_domains([files[0], files[0]])
    with pytest.raises(UsageError, match="Limit: expected 2 texts or more, found 1"):
        load_domains(files, limit=1)


# -- embeddings ---------------------------------------------------------


def arrays(tmp_path, x, **more):
    np.savez(tmp_path / "x.npz", emb=x, **more)
    np.save(tmp_path / "y.npy", np.eye(4, x.shape[1] if x.ndim == 2 else 3))
    return [DomainSpec("x", tmp_path / "x.npz"), DomainSpec("y", tmp_path / "y.npy")]


def test_embeddings_are_taken_as_they_are_and_unusable_rows_are_named(tmp_path):
    x = np.arange(1.0, 16.0).reshape(5, 3)
    x[1, 2], x[3] = np.nan, 0.0
    loaded = load_domains(arrays(tmp_path, x))[0]
    np.testing.assert_array_equal(loaded.vectors, x[[0, 2, 4]].astype(np.float32))
    assert loaded.texts == ()
    assert (loaded.facts["unreadable"], loaded.facts["unreadable_rows"], loaded.facts["empty"]) == (2, [1, 3], 0)
    assert list(loaded.rows) == [0, 2, 4]


def test_groups_of_embeddings_come_from_a_second_array(tmp_path):
    np.savez(tmp_path / "y.npz", emb=np.eye(4, 3), doc=np.arange(4))
    specs = arrays(tmp_path, np.arange(1.0, 13.0).reshape(4, 3), doc=np.array(["p", "p", "q", "r"]))
    loaded = load_domains([specs[0], DomainSpec("y", tmp_path / "y.npz")], group_by="doc")[0]
    assert list(loaded.clusters) == [0, 0, 1, 2]
    with pytest.raises(DataError, match=r"Domain 'y'.*expected an array 'doc' with one label per row, found none"):
        load_domains(specs, group_by="doc")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones(3), r"expected embeddings of shape \(n, d\), found float64 \(3,\)"),
        (np.array([["a", "b"]]), r"expected embeddings of shape \(n, d\), found <U1 \(1, 2\)"),
        (np.full((3, 3), np.nan), "expected at least 2 usable rows, found 0 of 3"),
        (np.ones((1, 3)), "expected at least 2 usable rows, found 1 of 1"),
    ],
)
def test_bad_embeddings_are_refused(tmp_path, x, message):
    with pytest.raises(DataError, match=message):
        load_domains(arrays(tmp_path, x))


def test_the_array_must_be_clear(tmp_path):
    np.savez(tmp_path / "x.npz", p=np.eye(3), q=np.eye(3))
    np.save(tmp_path / "y.npy", np.eye(3))
    spec = DomainSpec("x", tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"cannot tell which array holds the embeddings: found p, q. Name it"):
        load_domains([spec, DomainSpec("y", tmp_path / "y.npy")])
    named = DomainSpec("x", tmp_path / "x.npz", column="q")
    assert load_domains([named, DomainSpec("y", tmp_path / "y.npy")])[0].facts["column"] == "q"
    with pytest.raises(DataError, match="expected array 'z', found p, q"):
        load_domains([DomainSpec("x", tmp_path / "x.npz", column="z"), DomainSpec("y", tmp_path / "y.npy")])
