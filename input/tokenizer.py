"""Tokenizers: text to tokens and back, in the format of Hugging Face's library."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE: Final = "tokenizer.json"
"""The name of its file."""
_ENDS: Final = (
    *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>", "<eos>", "[SEP]"),
)
"""Tokens that end a document, as published tokenizers name them."""
_BYTES: Final = 256
"""Tokens of single bytes, which every byte-level vocabulary has."""


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> "Tokenizer":
    """Train a byte-level BPE on texts.

    Sennrich et al. 2016, arXiv:1508.07909; on bytes: Radford et al. 2019, section 2.2.

    Args:
        texts: documents.
        vocabulary: tokens in all, the 256 bytes and the end sign among them.

    Raises:
        BadInput: fewer tokens than that, or the library is missing.
    """
    library = _library()
    if vocabulary <= _BYTES:
        raise BadInput(
            "the vocabulary is too small",
            rule=f"a byte-level vocabulary has the {_BYTES} bytes and an end sign",
            values=f"--vocabulary {vocabulary}",
            remedy="--vocabulary 8192",
        )
    made: Tokenizer = library.Tokenizer(library.models.BPE())
    level = library.pre_tokenizers.ByteLevel
    made.pre_tokenizer = level(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_ENDS[0]],
        # All 256 bytes, also those that the texts lack: any text can be spelled.
        initial_alphabet=level.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return _plain(made)


def read_tokenizer(path: Path) -> "Tokenizer":
    """Read a `tokenizer.json`, whatever its model: BPE or unigram.

    Raises:
        BadInput: it is none, or the library is missing.
    """
    library = _library()
    try:
        return _plain(library.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises nothing more special
        raise BadInput(
            f"no tokenizer in {path}",
            rule="a tokenizer is a tokenizer.json, in the format of Hugging Face",
            values=str(error).splitlines()[0],
            remedy="jaxdist prepare text FILE_OR_FOLDER --vocabulary 8192 trains one",
        ) from error


def vocabulary_size(made: "Tokenizer") -> int:
    """Return one more than the largest token; some below it may be nobody's."""
    return max(made.get_vocab(with_added_tokens=True).values()) + 1


def end_token(made: "Tokenizer", name: str = "") -> int:
    """Return the token that ends a document.

    Args:
        made: the tokenizer.
        name: of the token; empty: a usual one that it has.

    Raises:
        BadInput: it has none.
    """
    for each in (name,) if name else _ENDS:
        token = made.token_to_id(each)
        if token is not None:
            return int(token)
    raise BadInput(
        "the tokenizer has no token for the end of a document",
        rule="a document ends in a token of its own",
        values=f"none of {', '.join((name,) if name else _ENDS)}",
        remedy="--end TOKEN, one of its special tokens",
    )


def _plain(made: "Tokenizer") -> "Tokenizer":
    """Return a tokenizer that says all of a text and nothing besides."""
    # Text that looks like a special token is text: documents are not to be trusted.
    made.encode_special_tokens = True
    made.no_truncation()
    made.no_padding()
    return made


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise BadInput(
            "tokenizers are not installed",
            rule="tokenizers are those of Hugging Face's library",
            values=str(error),
            remedy="pip install 'jaxdist[text]'",
        ) from error
    return tokenizers
