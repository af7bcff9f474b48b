"""Tokens: windows of packed documents out of a folder that `prepare text` has written.

A document of n tokens is n + 1 places: behind the end sign of the one before it each
token is asked for, and behind the last one the end sign. So every token is a target
once, and a sum over all windows is a sum over all documents.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.array_record import ArrayRecords
from jaxdist.input.mixture import Mixture
from jaxdist.input.packing import pack_documents
from jaxdist.input.prepare import CHECKSUM_FILE
from jaxdist.input.sources import Arrays, SampleIds
from jaxdist.input.tokenizer import TOKENIZER_FILE

ABOUT_FILE: Final = "tokens.json"
"""Says what a folder of tokens holds."""
RECORD_TOKENS: Final = 1 << 13
"""Most tokens of a record: a longer document is several, so that a window of a book
reads no book."""
IGNORED_TARGET: Final = -100
"""Target of padding, which counts for nothing."""
_REMEDY: Final = "jaxdist prepare text FILE_OR_FOLDER, then data.name=tokens:FOLDER"


@dataclass(frozen=True, kw_only=True)
class TokensAbout:
    """What a folder of tokens holds."""

    vocabulary: int
    """Distinct tokens."""
    end: int
    """Token of the end of a document."""
    dtype: str
    """Dtype of the records: uint16, or uint32 for more than 65,536 tokens."""
    tokenizer: str
    """Digest of `tokenizer.json`."""


@runtime_checkable
class TokenSource(Protocol):
    """What a source of tokens of a tokenizer has besides."""

    about: TokensAbout
    """Its tokenizer."""
    folder: Path
    """Where `tokenizer.json` lies."""


class PackedDocuments:
    """Windows of documents that share them; a `Source` of four arrays.

    tokens int32 [n, T], behind which `target` int32 [n, T] is asked for; `segments`
    int32 [n, T], for each token the place in its window at which its document begins;
    `bytes` int32 [n], of the documents that end in a window. Padding is a document of
    its own, without targets.

    Args:
        folder: what `jaxdist prepare text` has written.
        split: `train` or `test`.
        context: tokens of a window.

    Raises:
        BadInput: no such folder, or no document in it.
    """

    def __init__(self, folder: Path, split: str, context: int) -> None:
        self.folder, self.about = folder, read_about(folder)
        self._split, self._dtype = split, np.dtype(self.about.dtype).newbyteorder("<")
        # Tokens and bytes of each document, [N, 2].
        sizes = np.load(folder / f"{split}.npy", mmap_mode="r", allow_pickle=False)
        self._tokens, self._bytes = (np.ascontiguousarray(x) for x in sizes.T)
        self.packing = pack_documents(self._tokens + 1, context)
        records = -(-self._tokens // RECORD_TOKENS)
        self._first_record = np.cumsum(records) - records
        self._records = ArrayRecords([folder / f"{split}.array_record"])

    def __len__(self) -> int:
        return len(self.packing)

    def get(self, ids: SampleIds) -> Arrays:
        """Read windows: int [n] to new arrays, int32 [n, T], and `bytes` [n]."""
        packing, size = self.packing, self.packing.size
        first, end = packing.bounds[ids], packing.bounds[np.asarray(ids) + 1]
        counts = end - first
        # Rows of the pieces of all windows, one window after the other.
        begins = np.cumsum(counts) - counts
        rows = np.arange(counts.sum()) + np.repeat(first - begins, counts)
        lengths, documents = packing.lengths[rows], packing.documents[rows]
        # Where in its window each piece begins.
        before = np.cumsum(lengths) - lengths
        places = before - np.repeat(before[begins], counts)
        window = np.repeat(np.arange(len(ids)), counts)

        tokens = np.full((len(ids), size), self.about.end, np.int32)
        target = np.full((len(ids), size), IGNORED_TARGET, np.int32)
        filled = np.add.reduceat(lengths, begins)
        segments = np.repeat(filled[:, None].astype(np.int32), size, axis=1)
        starts = packing.starts[rows]
        read = self._read(documents, starts, lengths)
        each = zip(window.tolist(), places.tolist(), lengths.tolist(), read)
        for row, place, length, piece in each:
            until = place + length
            tokens[row, place:until] = piece[:-1]
            target[row, place:until] = piece[1:]
            segments[row, place:until] = place
        ends = starts + lengths > self._tokens[documents]
        said = np.bincount(window, self._bytes[documents] * ends, len(ids))
        return {
            "tokens": tokens,
            "segments": segments,
            "target": target,
            "bytes": said.astype(np.int32),
        }

    def _read(
        self,
        documents: NDArray[np.int64],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> list[NDArray[Any]]:
        """Return pieces of documents, with the token after each, and end signs."""
        counts = self._tokens[documents]
        # Place 0 is the end sign of the document before: tokens lie one later.
        lows, highs = np.maximum(starts - 1, 0), np.minimum(starts + lengths, counts)
        base = self._first_record[documents]
        firsts, lasts = lows // RECORD_TOKENS, np.maximum(highs - 1, 0) // RECORD_TOKENS
        records = np.unique(np.concatenate([base + firsts, base + lasts]))
        held = {
            number: np.frombuffer(record, self._dtype)
            for number, record in zip(
                records.tolist(), self._records.read(records), strict=True
            )
        }
        end = np.full(1, self.about.end, self._dtype)
        found = []
        columns = (base, firsts, lasts, lows, highs, starts, starts + lengths > counts)
        for at, a, b, low, high, start, is_end in zip(*(x.tolist() for x in columns)):
            skip = a * RECORD_TOKENS
            parts = [held[at + number] for number in range(a, b + 1)]
            piece = parts[0] if len(parts) == 1 else np.concatenate(parts)
            piece = piece[low - skip : high - skip]
            if start == 0 or is_end:
                piece = np.concatenate([*[end] * (start == 0), piece, *[end] * is_end])
            found.append(piece)
        return found

    @property
    def fingerprint(self) -> str:
        """Digest of the list of checksums, the split and the window."""
        # Written with the files, so that none has to be read again.
        listed = (self.folder / CHECKSUM_FILE).read_bytes()
        head = f"{self._split} {self.packing.size} "
        return hashlib.sha256(head.encode() + listed).hexdigest()


class TokenMixture(Mixture):
    """Windows of several folders of one tokenizer, each with its part of an epoch."""

    def __init__(self, parts: Mapping[str, tuple[PackedDocuments, float]]) -> None:
        super().__init__(parts)
        one, _ = next(iter(parts.values()))
        self.folder, self.about = one.folder, one.about
        for name, (other, _) in parts.items():
            if other.about != one.about:
                raise BadInput(
                    "these folders are of several tokenizers",
                    rule="all sources of a mixture have one tokenizer",
                    values=f"{one.folder} has {one.about.vocabulary:,} tokens, "
                    f"{name} {other.about.vocabulary:,}, or others",
                    remedy=f"jaxdist prepare text FILE --tokenizer "
                    f"{one.folder / TOKENIZER_FILE}",
                )


def open_tokens(
    text: str, context: int
) -> tuple[PackedDocuments | TokenMixture, PackedDocuments | TokenMixture]:
    """Open a folder of tokens, or several with their weights, as windows.

    Args:
        text: a folder, or `FOLDER=WEIGHT,FOLDER=WEIGHT`.
        context: tokens of a window.

    Returns:
        Training windows, and those of the held-out documents.

    Raises:
        BadInput: no tokens there, several tokenizers, or a weight that is none.
    """
    if "," not in text and "=" not in text:
        folder = Path(text)
        train, test = (PackedDocuments(folder, x, context) for x in ("train", "test"))
        return train, test
    weights: dict[str, float] = {}
    for word in text.split(","):
        name, _, weight = word.partition("=")
        try:
            weights[name] = float(weight)
        except ValueError as error:
            raise BadInput(
                f"{word} is no folder with its weight",
                rule="data.name=tokens:FOLDER=WEIGHT,FOLDER=WEIGHT",
                values=f"data.name = tokens:{text}",
                remedy=f"data.name=tokens:{name}=0.7,...",
            ) from error
    opened = {
        name: [PackedDocuments(Path(name), x, context) for x in ("train", "test")]
        for name in weights
    }
    # Held-out documents are scored once each, whatever the weights of training are.
    held_out = {name: (test, len(test)) for name, (_, test) in opened.items()}
    mixed = {name: (train, weights[name]) for name, (train, _) in opened.items()}
    return TokenMixture(mixed), TokenMixture(held_out)


def read_about(folder: Path) -> TokensAbout:
    """Read what a folder of tokens holds.

    Raises:
        BadInput: it holds no tokens.
    """
    try:
        found = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
        return TokensAbout(**{key: found[key] for key in TokensAbout.__annotations__})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"no tokens in {folder}",
            rule=f"data.name=tokens:FOLDER reads a folder with {ABOUT_FILE}",
            values=f"{type(error).__name__}: {error}",
            remedy=_REMEDY,
        ) from error
