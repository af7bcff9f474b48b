"""Text: every character is where the file has it, and the split is by position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.input.batch_assembly import EvalBatchAssembler
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data
from jaxdist.input.text import END_OF_TEXT, encode_characters, open_text

# Folders of these tests hold files that are no texts.
pytestmark = pytest.mark.filterwarnings("ignore:passed over in")
WORDS = "Füße: no rose\r\nwithout a thorn, 7 times.\n" * 20


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(WORDS.encode())
    return str(file)


def spell(source, key="tokens"):
    rows = source.get(np.arange(len(source)))[key]
    return ["".join(source.vocabulary[t] for t in row) for row in rows]


def test_windows_are_the_text_and_targets_come_one_later(path):
    train, test = open_data(DataConfig(name="text", path=path, context=16))
    border = len(WORDS) * 9 // 10
    for source, part in ((train, WORDS[:border]), (test, WORDS[border:])):
        for i, (words, later) in enumerate(zip(spell(source), spell(source, "target"))):
            assert words == part[16 * i : 16 * i + 16]
            assert later == part[16 * i + 1 : 16 * i + 17]
        assert len(source) == (len(part) - 1) // 16


@given(st.integers(1, 40), st.integers(1, 30))
def test_every_window_that_fits_is_there(context, stride):
    tokens, vocabulary = encode_characters(WORDS)
    from jaxdist.input.text import TextWindows

    text = TextWindows(tokens, vocabulary, context=context, stride=stride)
    last = (len(text) - 1) * stride + context + 1
    assert last <= len(WORDS) < last + stride


def test_a_stride_concerns_training_alone(path):
    train, test = open_text(path, context=16, stride=4)
    side_by_side = open_text(path, context=16)
    assert len(train) > 3 * len(side_by_side[0])
    assert spell(train)[4] == spell(side_by_side[0])[1]
    assert test.fingerprint == side_by_side[1].fingerprint
    assert train.fingerprint != side_by_side[0].fingerprint


@given(st.text(min_size=1))
def test_any_text_can_be_spelt_again(text):
    tokens, vocabulary = encode_characters(text)
    assert "".join(vocabulary[t] for t in tokens) == text
    assert list(vocabulary) == sorted(set(text))


def test_held_out_characters_are_asked_for_once(path):
    _, test = open_text(path, context=16)
    dtypes = {"tokens": "int32", "target": "int32"}
    recipe = EvalBatchAssembler(source=test, batch=4, dtypes=dtypes)
    batches = [recipe(step, np.arange(4)) for step in range(recipe.steps)]
    real = [b["target"][b["weight"] > 0] for b in batches]
    asked = "".join(test.vocabulary[t] for t in np.concatenate(real).ravel())
    border = len(WORDS) * 9 // 10
    assert asked == WORDS[border + 1 : border + 1 + 16 * len(test)]
    assert all(b["tokens"].dtype == np.int32 for b in batches)


@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        (None, "no text in", "data.path=FILE"),
        (b"", "is empty", "data.path=FILE"),
        (b"abc \xff", "is no text", "iconv"),
        (b"to be or not to be " * 20, "is too short", "data.context=37"),
        (b"to be", "is too short", "a text of 1,290 characters"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, content, what, remedy):
    file = tmp_path / "a.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput, match=what) as refused:
        open_text(str(file), context=128)
    assert remedy in str(refused.value)


def test_the_shortest_context_that_is_named_works(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"to be or not to be " * 20)
    assert [len(part) for part in open_text(str(tmp_path / "a.txt"), context=37)] == [
        9,
        1,
    ]


def test_without_a_path():
    with pytest.raises(BadInput, match=r"data\.path is empty"):
        open_data(DataConfig(name="text"))


@pytest.fixture
def folder(tmp_path):
    """Three texts and something else, in the order of their paths."""
    (tmp_path / "more").mkdir()
    texts = {"b.txt": "To be. " * 30, "a.txt": "Or not. " * 25, "more/c.txt": WORDS}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "notes.md").write_text("left")
    return tmp_path, "".join(
        f"{texts[n]}{END_OF_TEXT}" for n in ("a.txt", "b.txt", "more/c.txt")
    )


def test_texts_of_a_folder_are_packed_into_full_windows(folder):
    path, whole = folder
    train, test = open_text(str(path), context=16, stride=16)
    border = len(whole) * 9 // 10
    assert "".join(spell(train)) == whole[: 16 * len(train)]
    assert len(train) == (border - 1) // 16
    assert END_OF_TEXT in train.vocabulary
    assert "".join(spell(test)) == whole[border : border + 16 * len(test)]


def test_another_text_of_a_folder_is_another_data_set(folder):
    path, _ = folder
    before = open_text(str(path), context=16)[0].fingerprint
    assert open_text(str(path), context=16)[0].fingerprint == before
    (path / "b.txt").write_text("To be, " * 30)
    assert open_text(str(path), context=16)[0].fingerprint != before


def test_a_folder_without_texts_and_a_text_that_is_none_are_named(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no text in") as caught:
        open_text(str(tmp_path / "empty"), context=16)
    assert ".txt" in caught.value.rule
    path, _ = folder
    (path / "d.txt").write_bytes(b"\xff")
    with pytest.raises(BadInput, match=r"d\.txt is no text"):
        open_text(str(path), context=16)
