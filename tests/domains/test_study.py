"""From domains to tables: columns, facts, remarks, and the frozen bandwidth."""

import json

import numpy as np
import pytest

from driftlab.domains.encoded import Encoded, unit_rows
from driftlab.domains.encoder import CharNgramEncoder
from driftlab.domains.mmd import measure_distances
from driftlab.domains.reference import compare_heat_maps, read_heat_map
from driftlab.domains.settings import Settings
from driftlab.domains.specs import DomainSpec
from driftlab.domains.study import TABLES, describe, measure_domains
from driftlab.domains.texts import load_domains
from driftlab.errors import DataError, UsageError

# The contract of mmd.parquet.
COLUMNS = (
    *("left", "right", "n_left", "n_right", "mmd2_u", "mmd2_v", "mmd"),
    *("ci_low", "ci_high", "p_value", "p_holm", "null_q95", "gamma"),
)


def write(folder, **domains):
    specs = []
    for name, texts in domains.items():
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
        specs.append(DomainSpec(name, folder / f"{name}.jsonl", group=name[0].upper()))
    return specs


def words(prefix, n):
    rng = np.random.default_rng(len(prefix))
    return [f"{prefix} {' '.join(map(str, rng.integers(100, size=4)))}" for _ in range(n)]


@pytest.fixture
def specs(tmp_path):
    return write(tmp_path, maths=words("compute", 30), code=words("write a function", 25), tools=words("call", 20))


def study(specs, *, encoder=None, domains=None, **settings):
    chosen = Settings(**({"permutations": 99, "precision": "float64"} | settings))
    return measure_domains(domains or load_domains(specs), encoder or CharNgramEncoder(), chosen)


def test_tables_have_the_columns_of_the_contract(specs):
    found = study(specs)
    assert set(found.tables) == set(TABLES) - {"mmd_reference"}
    pairs = found.tables["mmd"]
    assert set(COLUMNS) <= set(pairs.columns)
    assert list(zip(pairs["left"], pairs["right"], strict=True)) == [
        ("maths", "code"),
        ("maths", "tools"),
        ("code", "tools"),
    ]
    assert pairs["gamma"].nunique() == 1
    assert not pairs["at_noise_floor"].any()
    assert list(found.tables["projection"].columns) == ["method", "domain", "group", "row", "x", "y"]
    assert set(found.tables["projection"]["group"]) == {"M", "C", "T"}
    assert len(found.tables["mmd_differences"]) == 3
    assert len(found.tables["mmd_sensitivity"]) == 3 * 5
    json.dumps(found.summary, allow_nan=False)


def test_the_frozen_bandwidth_changes_no_old_cell(specs, tmp_path):
    three = study(specs, precision="float32")
    (tmp_path / "mmd.json").write_text(json.dumps(three.summary))
    more = write(tmp_path, essays=words("discuss at length", 40))
    four = study([*more, *specs], bandwidth=f"file:{tmp_path}", precision="float32")
    assert four.summary["gamma"] == three.summary["gamma"]
    free = study([*more, *specs], precision="float32")
    assert free.summary["gamma"] != three.summary["gamma"]
    old, new = (s.tables["mmd"].set_index(["left", "right"]) for s in (three, four))
    same = ["mmd2_u", "mmd2_v", "mmd", "nammd", "se", "ci_low", "ci_high", "p_value", "null_q95", "gamma"]
    for pair in old.index:
        assert new.loc[pair, same].to_list() == old.loc[pair, same].to_list()


def test_gamma_follows_its_rule(specs, tmp_path):
    assert study(specs, bandwidth="0.5").summary["gamma"] == 0.5
    found = study(specs).summary
    assert found["bandwidth"] == {"rule": "median", "rows_per_domain": 20, "seed": 0}
    for rule in ("mean", "-1", "nan", "inf"):
        with pytest.raises(UsageError, match=f"Bandwidth '{rule}': expected median, a positive number, or file:PATH"):
            study(specs, bandwidth=rule)
    (tmp_path / "g.json").write_text('{"gamma": 0}')
    with pytest.raises(UsageError, match="expected a positive gamma, found 0"):
        study(specs, bandwidth=f"file:{tmp_path}/g.json")
    with pytest.raises(UsageError, match=r"none\.json: expected JSON with a number 'gamma', found none"):
        study(specs, bandwidth=f"file:{tmp_path}/none.json")


def test_a_bandwidth_of_another_encoder_is_remarked(specs, tmp_path):
    (tmp_path / "g.json").write_text('{"gamma": 0.4, "encoder": {"key": "another"}}')
    assert any("another encoder" in remark for remark in study(specs, bandwidth=f"file:{tmp_path}/g.json").remarks)


class Cut:
    """Sees the first ``window`` characters and nothing else."""

    name, key, window = "cut", "cut", 12

    def encode(self, texts, advance=lambda texts: None):
        heads = [text[: self.window] for text in texts]
        ids = {head: i for i, head in enumerate(dict.fromkeys(heads))}
        vectors = np.stack([np.bincount([ord(c) % 32 for c in head], minlength=32) for head in heads])
        cut = np.array([len(text) > self.window for text in texts])
        return Encoded(unit_rows(vectors.astype(np.float32)), cut, np.array([ids[head] for head in heads]))


def test_cut_texts_are_visible_and_can_be_grouped(tmp_path):
    shared = [f"{group} shared opening, question {i}" for group in "abcdefgh" for i in range(6)]
    specs = write(tmp_path, tools=shared, maths=words("x", 30))
    plain = study(specs, encoder=Cut())
    seen = plain.tables["mmd_domains"].set_index("domain")
    assert seen.loc["tools", ["truncated", "truncated_share", "distinct_seen"]].to_list() == [48, 1.0, 8]
    assert any("tools: 48 of 48 texts (100%) are longer" in remark for remark in plain.remarks)
    assert any("sees 8 different texts instead of 48" in remark for remark in plain.remarks)
    grouped = study(specs, encoder=Cut(), group_by="@window")
    encoded = {domain.name: Cut().encode(domain.texts) for domain in load_domains(specs)}
    direct = measure_distances(
        {name: one.vectors for name, one in encoded.items()},
        grouped.summary["gamma"],
        clusters={name: one.seen for name, one in encoded.items()},
        permutations=99,
        precision="float64",
    ).pairs[0]
    assert grouped.tables["mmd"]["se"][0] == direct.se != plain.tables["mmd"]["se"][0]
    assert grouped.tables["mmd"]["p_value"][0] == direct.p_value
    assert grouped.tables["mmd"]["mmd2_u"][0] == plain.tables["mmd"]["mmd2_u"][0]
    assert not any("different texts instead" in remark for remark in grouped.remarks)


def test_what_was_left_out_is_remarked(tmp_path):
    texts = words("a", 20)
    specs = write(tmp_path, one=[*texts, "", texts[0]], two=[*words("bb", 20), texts[1]])
    remarks = study(specs, permutations=9).remarks
    for part in (
        "Guessed column 'prompt' for one, two.",
        "no model: distances are of spelling",
        "one: 1 of 22 rows are empty and were left out.",
        "one: 1 texts repeat an earlier one",
        "one and two share 1 texts",
        "no corrected p can fall below 0.10",
    ):
        assert any(part in remark for remark in remarks), part


def test_equal_texts_everywhere_and_two_texts(tmp_path):
    specs = write(tmp_path, one=["same"] * 5, two=["same"] * 4)
    with pytest.raises(DataError, match="are the same: no bandwidth fits"):
        study(specs)
    found = study(specs, bandwidth="1")
    assert found.tables["mmd"]["mmd2_u"][0] == pytest.approx(0.0, abs=1e-12)
    assert found.tables["mmd"]["p_value"][0] == 1.0
    assert found.tables["mmd"]["at_noise_floor"][0]
    assert any("No t-sne map: all texts are the same" in remark for remark in found.remarks)
    small = study(write(tmp_path, one=["a b", "c d"], two=words("x", 9)))
    assert np.isnan(small.tables["mmd"]["ci_low"][0])
    assert any("one and two: no interval: 2 independent rows" in remark for remark in small.remarks)


def test_embeddings_need_no_encoder_and_one_space(tmp_path):
    rng = np.random.default_rng(0)
    for name, width in (("p", 6), ("q", 6), ("r", 5)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(12, width)))
    p, q, r = (DomainSpec(name, tmp_path / f"{name}.npy") for name in "pqr")
    domains = load_domains([p, q])
    found = measure_domains(domains, None, Settings(permutations=19))
    assert found.tables["mmd"]["encoder"][0] == "given embeddings"
    assert found.summary["encoder"] is None
    with pytest.raises(DataError, match="Domain 'r' has vectors of width 5, domain 'p' of width 6"):
        measure_domains(load_domains([p, r]), None, Settings(permutations=19))
    texts = load_domains(write(tmp_path, one=words("a", 5), two=words("b", 5)))
    with pytest.raises(UsageError, match="Domain 'one' holds texts: an encoder is needed"):
        measure_domains(texts, None, Settings())


def test_the_description_changes_with_everything_that_changes_a_number(specs):
    domains, encoder = load_domains(specs), CharNgramEncoder()
    base = describe(domains, encoder, Settings())
    assert describe(load_domains(specs), encoder, Settings(device="cpu")) == base
    assert describe(load_domains(specs, limit=9), encoder, Settings()) != base
    assert describe(domains, encoder, Settings(seed=1)) != base


# -- another heat map ------------------------------------------------------


def heat_map(path, domains, values, **more):
    path.write_text(json.dumps({"domains": domains, "values": values, **more}))
    return path


def test_heat_maps_are_compared_by_rank_and_name_without_case(tmp_path, specs):
    found = study(specs).summary
    (tmp_path / "mmd.json").write_text(json.dumps(found))
    ours = read_heat_map(tmp_path)
    assert compare_heat_maps(ours, ours)["kendall_tau"] == pytest.approx(1.0)
    turned = [[0 if i == j else 9 - value for j, value in enumerate(row)] for i, row in enumerate(found["values"])]
    other = read_heat_map(heat_map(tmp_path / "o.json", ["Maths", "Code", "Tools"], turned, unit="u", source="s"))
    assert compare_heat_maps(ours, other) == {
        "source": "s",
        "unit": "u",
        "pairs": 3,
        "kendall_tau": pytest.approx(-1.0),
        "spearman_rho": pytest.approx(-1.0),
    }
    one = read_heat_map(heat_map(tmp_path / "o.json", ["maths", "code"], [[0, 1], [1, 0]]))
    assert compare_heat_maps(ours, one)["kendall_tau"] is None


def test_a_compared_study_stores_the_reference(specs, tmp_path):
    file = heat_map(tmp_path / "o.json", ["maths", "code", "else"], [[0, 1, 2], [1, 0, 3], [2, 3, 0]])
    reference = read_heat_map(file, ["maths", "code", "tools"])
    found = measure_domains(load_domains(specs), CharNgramEncoder(), Settings(permutations=9), reference=reference)
    assert found.tables["mmd_reference"]["value"].to_list() == [1.0, 2.0, 3.0]
    assert found.summary["compare"]["pairs"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "expected JSON with 'domains' and 'values', found none"),
        ('{"domains": ["a"], "values": [[0, 1]]}', r"1 domains need as many rows and columns, found \(1, 2\)"),
        ('{"domains": ["a", "b"], "values": [[0, 1], [2, 0]]}', "expected a symmetric matrix of numbers"),
        ('{"domains": ["a", "b"], "values": [[0, 1], [1, 0]]}', "shares no pair .* it has a, b; this run has x, y"),
    ],
)
def test_a_bad_heat_map_is_named(tmp_path, content, message):
    (tmp_path / "h.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_heat_map(tmp_path / "h.json", ["x", "y"])
