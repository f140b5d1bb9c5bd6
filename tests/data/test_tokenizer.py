"""Byte-level BPE: nothing is lost, the end of document cannot be forged, a file is the one it should be."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenizer import END_OF_DOCUMENT, load, train

TEXTS = ["the quick brown fox jumps over the lazy dog", "def f(x):\n    return x + 1", "naïve café"] * 20


@pytest.fixture(scope="module")
def made():
    return train(TEXTS, 300)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back(text):
    tokenizer = test_any_text_comes_back.tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not ids.size or (ids.min() > tokenizer.eod and ids.max() < tokenizer.vocab)
    assert [each.tolist() for each in tokenizer.encode_many([text, "x"])][0] == ids.tolist()


test_any_text_comes_back.tokenizer = train(TEXTS, 300)


@pytest.mark.parametrize("text", ["", " ", "\r\n\t\0", "e\u0301 \u00e9", "👩‍👩‍👧", "\U0010ffff", "  two  spaces  ",
                                  "Ġ ▁ <unk>", f"a{END_OF_DOCUMENT}b", END_OF_DOCUMENT * 2])
def test_texts_that_break_other_tokenizers(made, text):
    ids = made.encode(text)
    assert made.decode(ids) == text
    assert made.eod not in ids.tolist()


def test_end_of_document_cannot_be_forged_after_loading(made, tmp_path):
    made.save(tmp_path / "t.json")
    loaded = load(tmp_path / "t.json", made.sha256)
    assert loaded.eod not in loaded.encode(END_OF_DOCUMENT).tolist()
    assert loaded.decode([loaded.eod]) == END_OF_DOCUMENT


def test_half_a_surrogate_pair_is_a_value_error(made):
    with pytest.raises(ValueError, match="character 2 of the text is half of a surrogate pair"):
        made.encode("ab\ud800")


def test_vocabulary_size_and_merges(made):
    assert (made.vocab, made.eod) == (300, 0)
    assert len(made.encode("the quick brown fox")) < len("the quick brown fox") / 2
    smallest = train(TEXTS, 257)
    assert len(smallest.encode("café")) == 5
    with pytest.raises(ValueError, match="vocab=5000: the training text yields only .* set vocab to at most"):
        train(TEXTS, 5000)


def test_training_is_repeatable(made):
    assert train(iter(TEXTS), 300).sha256 == made.sha256


def test_saved_file_is_plain_tokenizers_json(made, tmp_path):
    path = tmp_path / "t.json"
    made.save(path)
    plain = tokenizers.Tokenizer.from_file(str(path))
    assert plain.encode("the lazy fox").ids == made.encode("the lazy fox").tolist()
    loaded = load(path, made.sha256)
    assert (loaded.vocab, loaded.eod, loaded.sha256) == (made.vocab, made.eod, made.sha256)


def test_another_tokenizer_is_refused(made, tmp_path):
    path = tmp_path / "t.json"
    train(TEXTS, 290).save(path)
    with pytest.raises(ValueError, match="use the tokenizer that lies beside the tokens"):
        load(path, made.sha256)


@pytest.mark.parametrize("content, message", [
    ("{}", "is not a tokenizers JSON"),
    ("no json", "is not a tokenizers JSON"),
    (None, "does not exist; python -m data.prepare"),
])
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_tokenizer_without_end_of_document(made, tmp_path):
    path = tmp_path / "t.json"
    made.save(path)
    content = json.loads(path.read_text())
    content["added_tokens"] = []
    vocabulary = content["model"]["vocab"]
    vocabulary["<other>"] = vocabulary.pop(END_OF_DOCUMENT)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="marks the end of a document"):
        load(path)
