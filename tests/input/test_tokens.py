"""Tokens: documents written once, read as windows, with every byte accounted for."""

import json

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data
from jaxdist.input.token_files import prepare_text
from jaxdist.input.tokenizer import read_tokenizer
from jaxdist.input.tokens import PackedDocuments

WORDS = (
    "one",
    "two",
    "three",
    "caf\u00e9",
    "\u0434\u0432\u0430",
    "<|endoftext|>",
    "\n\n",
)


def write_documents(path, count=60, longest=200):
    rng = np.random.default_rng(0)
    texts = [
        " ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)
    ]
    # Empty ones, and one twice.
    rows = [{"text": text} for text in ("", *texts, " \n", texts[0])]
    path.write_text("\n".join(map(json.dumps, rows)))
    return texts


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    texts = write_documents(folder / "mine.jsonl")
    return texts, prepare_text(folder / "mine.jsonl", folder / "out", vocabulary=300)


def read_documents(source):
    """Put the documents of a source together again, from targets alone."""
    windows, packing = source.get(np.arange(len(source))), source.packing
    found = {}
    for row in range(len(source)):
        place = 0
        for piece in range(packing.bounds[row], packing.bounds[row + 1]):
            until = place + packing.lengths[piece]
            assert (windows["segments"][row, place:until] == place).all()
            if not packing.starts[piece]:
                assert windows["tokens"][row, place] == source.about.end
            # Each target is the next token.
            inner = windows["tokens"][row, place + 1 : until]
            assert (windows["target"][row, place : until - 1] == inner).all()
            key = packing.documents[piece], packing.starts[piece]
            found[key] = windows["target"][row, place:until]
            place = until
        assert (windows["target"][row, place:] == -100).all()
        assert (windows["segments"][row, place:] == place).all()
    for document in {key[0] for key in found}:
        ids = np.concatenate(
            [found[key] for key in sorted(found) if key[0] == document]
        )
        assert ids[-1] == source.about.end
        yield ids[:-1].tolist()


def test_documents_come_back_byte_by_byte(prepared):
    texts, made = prepared
    tokenizer = read_tokenizer(made.folder / "tokenizer.json")
    found, total = [], 0
    for split in ("train", "test"):
        source = PackedDocuments(made.folder, split, 32)
        held = [
            tokenizer.decode(ids, skip_special_tokens=False)
            for ids in read_documents(source)
        ]
        said = int(source.get(np.arange(len(source)))["bytes"].sum())
        assert said == sum(len(text.encode()) for text in held)
        total += said
        found.append(held)
    assert sorted([*found[0], *found[1]]) == sorted([*texts, texts[0]])
    assert not set(found[0]) & set(found[1])
    assert (total, made.empty) == (made.text_bytes, 2)


def test_a_text_with_a_separator_and_a_folder_are_the_same_documents(tmp_path):
    texts = ["first one", "second one", "third\none"]
    (tmp_path / "one.txt").write_text("\n----\n".join(texts))
    (tmp_path / "many").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "many" / f"{number}.txt").write_text(text)
    made = [
        prepare_text(tmp_path / "one.txt", tmp_path / "a", separator="\n----\n"),
        prepare_text(tmp_path / "many", tmp_path / "b", vocabulary=8192),
    ]
    one, other = (PackedDocuments(each.folder, "train", 16) for each in made)
    assert one.get(np.array([0]))["tokens"].tolist() == (
        other.get(np.array([0]))["tokens"].tolist()
    )


def test_an_interrupted_preparation_leaves_nothing(tmp_path, monkeypatch):
    write_documents(tmp_path / "mine.jsonl")

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(tmp_path / "mine.jsonl", tmp_path / "data" / "out")
    assert [*(tmp_path / "data").iterdir()] == []


def test_sources_are_mixed_by_weight(prepared, tmp_path):
    _, made = prepared
    write_documents(tmp_path / "other.jsonl", count=30)
    other = prepare_text(
        tmp_path / "other.jsonl",
        tmp_path / "other",
        tokenizer=made.folder / "tokenizer.json",
    )
    name = f"tokens:{made.folder}=0.75,{other.folder}=0.25"
    train, test = open_data(DataConfig(name=name, context=32))
    sizes = [
        [len(PackedDocuments(x.folder, split, 32)) for x in (made, other)]
        for split in ("train", "test")
    ]
    parts = list(train.samples_per_source.values())
    assert sum(parts) == sum(sizes[0])
    assert parts[0] == round(0.75 * sum(sizes[0]))
    assert list(test.samples_per_source.values()) == sizes[1]


def test_a_unigram_tokenizer_is_taken(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = write_documents(tmp_path / "mine.jsonl")
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "</s>"], unk_token="<unk>"
    )
    unigram.train_from_iterator(texts, trainer)
    unigram.save(str(tmp_path / "unigram.json"))
    made = prepare_text(
        tmp_path / "mine.jsonl", tmp_path / "out", tokenizer=tmp_path / "unigram.json"
    )
    assert made.about.end == unigram.token_to_id("</s>")
    source = PackedDocuments(made.folder, "train", 32)
    assert len([*read_documents(source)]) == made.documents["train"]


def test_a_large_vocabulary_has_wide_tokens(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    write_documents(tmp_path / "mine.jsonl")
    # Ids need not be without holes.
    words = {"<unk>": 0, "</s>": 1, "one": 1 << 16}
    wide = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    wide.pre_tokenizer = pre_tokenizers.Whitespace()
    wide.save(str(tmp_path / "wide.json"))
    made = prepare_text(
        tmp_path / "mine.jsonl", tmp_path / "out", tokenizer=tmp_path / "wide.json"
    )
    assert made.about.dtype == "uint32"
    windows = PackedDocuments(made.folder, "train", 32).get(np.arange(2))
    assert windows["tokens"].max() == 1 << 16


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ('{"text": "a"}\n{"words": "b"}', {}, "line 2"),
        ('{"text": "a"}\nb', {}, "line 2"),
        ('{"text": "a"}\n{"text": "\\ud800"}', {}, "UTF-8"),
        ('{"text": "a"}\n{"text": "a"}', {}, "too few documents"),
        ('{"text": "a"}\n{"text": "b"}', {"vocabulary": 256}, "vocabulary"),
        ('{"text": "a"}\n{"text": "b"}', {"held_out": 1.0}, "held-out"),
        ('{"text": "a"}\n{"text": "b"}', {"end": "<stop>"}, "--end"),
        ("a", {"separator": ""}, "--separator"),
    ],
)
def test_what_cannot_be_prepared_says_why(tmp_path, text, settings, said):
    (tmp_path / "mine.jsonl").write_text(text)
    with pytest.raises(BadInput) as found:
        prepare_text(tmp_path / "mine.jsonl", tmp_path / "out", **settings)
    assert said in str(found.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_tokens_says_what_to_type(tmp_path):
    with pytest.raises(BadInput, match="jaxdist prepare text"):
        open_data(DataConfig(name=f"tokens:{tmp_path}"))
