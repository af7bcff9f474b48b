"""Token files: documents through a tokenizer, as files that windows are read from.

tokenizer.json        the tokenizer, in the format of Hugging Face
tokens.json           vocabulary, end sign, dtype
train.tokens          tokens of all documents, little-endian, with end signs between
train.npy             tokens and UTF-8 bytes of each document, int64 [N, 2]
test.*                the same of the documents that are held out
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import json_text
from jaxdist.input.documents import DEFAULT_SEPARATOR, Documents
from jaxdist.input.prepare import check_absent, prepare
from jaxdist.input.tokenizer import (
    TOKENIZER_FILE,
    end_token,
    read_tokenizer,
    train_tokenizer,
    vocabulary_size,
)
from jaxdist.input.tokens import ABOUT_FILE, TokensAbout

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DOCUMENTS_AT_ONCE: Final = 256
"""Documents that are given to the tokenizer in one call."""


@dataclass(frozen=True, kw_only=True)
class PreparedTokens:
    """What a preparation has written."""

    folder: Path
    """Where it lies."""
    about: TokensAbout
    """The tokenizer's vocabulary."""
    documents: dict[str, int]
    """Documents of each part."""
    tokens: dict[str, int]
    """Tokens of each part, without end signs."""
    text_bytes: int
    """UTF-8 bytes of all documents."""
    empty: int
    """Empty documents, which were left out."""


def prepare_text(
    path: Path,
    folder: Path,
    *,
    vocabulary: int = 8192,
    tokenizer: Path | None = None,
    end: str = "",
    separator: str = DEFAULT_SEPARATOR,
    held_out: float = 0.1,
) -> PreparedTokens:
    """Write the documents of a file or folder as tokens; whole, or not at all.

    A document is held out by a hash of its text, so that equal ones are on one side.

    Args:
        path: a `.jsonl` file, a folder of `.txt` files, or a text with a separator.
        folder: what is written; it must not be there.
        vocabulary: tokens of the byte-level BPE that is trained on the documents.
        tokenizer: a `tokenizer.json` to take instead.
        end: its token for the end of a document; empty: a usual one that it has.
        separator: what stands between the documents of one file of text.
        held_out: share of the documents that are held out.

    Raises:
        BadInput: too few documents, a tokenizer that cannot be used, or a folder that
            is there.
    """
    check_absent(folder)
    documents = Documents(path, separator)
    # Documents are read anew for the digests, the tokenizer and the tokens: together
    # they may not fit into memory.
    border = _held_out_border(documents, held_out, path)
    made = (
        read_tokenizer(tokenizer)
        if tokenizer
        else train_tokenizer(documents, vocabulary)
    )
    size = vocabulary_size(made)
    about = TokensAbout(
        vocabulary=size,
        end=end_token(made, end),
        dtype="uint16" if size <= 1 << 16 else "uint32",
        tokenizer=hashlib.sha256(made.to_str().encode()).hexdigest(),
    )
    sizes: dict[str, list[tuple[int, int]]] = {"train": [], "test": []}
    prepare(
        folder,
        partial(_write, documents, made, about, border, sizes, name=folder.name),
    )
    return PreparedTokens(
        folder=folder,
        about=about,
        documents={split: len(rows) for split, rows in sizes.items()},
        tokens={split: sum(n for n, _ in rows) for split, rows in sizes.items()},
        text_bytes=sum(size for rows in sizes.values() for _, size in rows),
        empty=documents.empty,
    )


def _held_out_border(documents: Documents, share: float, path: Path) -> bytes:
    """Return the digest below which documents are held out."""
    if not 0 < share < 1:
        raise BadInput(
            "no such share of documents can be held out",
            rule="--held-out is above 0 and below 1",
            values=f"--held-out {share}",
            remedy="--held-out 0.1",
        )
    # A set: duplicates lie on one side, so they count once.
    digests = sorted({_digest(text) for text in documents})
    if len(digests) < 2:
        raise BadInput(
            f"{path} has too few documents",
            rule="at least two documents, of which one is held out",
            values=f"{len(digests)} different documents, {documents.empty} empty",
            remedy=r"--separator '\n\n' where blank lines are between documents",
        )
    # At least one document lies on each side.
    return digests[min(max(round(len(digests) * share), 1), len(digests) - 1)]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _write(
    documents: Documents,
    made: "Tokenizer",
    about: TokensAbout,
    border: bytes,
    sizes: dict[str, list[tuple[int, int]]],
    directory: Path,
    *,
    name: str,
) -> None:
    """Write a folder of tokens into `directory/name`."""
    home = directory / name
    home.mkdir()
    made.save(str(home / TOKENIZER_FILE))
    (home / ABOUT_FILE).write_text(json_text(asdict(about)) + "\n")
    dtype = np.dtype(about.dtype).newbyteorder("<")
    with ExitStack() as stack:
        files = {
            split: stack.enter_context((home / f"{split}.tokens").open("wb"))
            for split in sizes
        }
        for text, ids in _encode(made, documents):
            split = "test" if _digest(text) < border else "train"
            # The end sign in front is what the last token of the document before is
            # asked for.
            files[split].write(np.asarray([about.end, *ids], dtype).tobytes())
            sizes[split].append((len(ids), len(text.encode())))
        for file in files.values():
            file.write(np.asarray([about.end], dtype).tobytes())
    for split, rows in sizes.items():
        # [N, 2] also where a part has no document.
        np.save(home / f"{split}.npy", np.asarray(rows, np.int64).reshape(-1, 2))


def _encode(
    made: "Tokenizer", documents: Iterable[str]
) -> Iterator[tuple[str, list[int]]]:
    """Yield each document and its tokens; several at once, on all cores."""
    rest = iter(documents)
    while texts := list(itertools.islice(rest, _DOCUMENTS_AT_ONCE)):
        # A tokenizer would put signs of its own around each document; the end signs
        # here are the only ones.
        found = made.encode_batch(texts, add_special_tokens=False)
        for text, encoding in zip(texts, found, strict=True):
            yield text, encoding.ids
