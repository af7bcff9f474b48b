"""Tokens: windows of packed documents out of a folder that `prepare text` has written.

The tokens of all documents lie in one file, an end sign before each and behind the
last. A document of n tokens is n + 1 places: behind the end sign of the one before it
each token is asked for, and behind the last one the end sign. So every token is a
target once, and a sum over all windows is a sum over all documents.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.mixture import Mixture
from jaxdist.input.packing import pack_documents
from jaxdist.input.prepare import CHECKSUM_FILE
from jaxdist.input.sources import Arrays, SampleIds
from jaxdist.input.tokenizer import TOKENIZER_FILE

ABOUT_FILE: Final = "tokens.json"
"""Says what a folder of tokens holds."""
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
    """Dtype of the files: uint16, or uint32 for more than 65,536 tokens."""
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
        self.folder, self.about, self._split = folder, read_about(folder), split
        dtype = np.dtype(self.about.dtype).newbyteorder("<")
        # Mapped, and not read: of a window its own tokens alone.
        file = np.memmap(folder / f"{split}.tokens", dtype, "r")
        # As a plain array: each slice of a memory map costs more.
        self._data = file.view(np.ndarray)
        # Tokens and bytes of each document, [N, 2].
        sizes = np.load(folder / f"{split}.npy", allow_pickle=False)
        self._places, self._bytes = sizes[:, 0] + 1, sizes[:, 1]
        self._offsets = np.cumsum(self._places) - self._places
        self.packing = pack_documents(self._places, context)

    def __reduce__(self) -> tuple[type, tuple[Path, str, int]]:
        # Worker processes map the files themselves.
        return PackedDocuments, (self.folder, self._split, self.packing.size)

    def __len__(self) -> int:
        return len(self.packing)

    def get(self, ids: SampleIds) -> Arrays:
        """Read windows: int [n] to new arrays, int32 [n, T], and `bytes` [n]."""
        packing, size = self.packing, self.packing.size
        first, end = packing.bounds[ids], packing.bounds[np.asarray(ids) + 1]
        counts = end - first
        # The pieces of all windows, one window after the other: rows of the packing.
        begins = np.cumsum(counts) - counts
        rows = np.arange(counts.sum()) + np.repeat(first - begins, counts)
        documents, starts = packing.documents[rows], packing.starts[rows]
        lengths = packing.lengths[rows]
        # Where in its window a piece begins, and from where it is read.
        before = np.cumsum(lengths) - lengths
        places = before - np.repeat(before[begins], counts)
        sources = self._offsets[documents] + starts
        filled = np.add.reduceat(lengths, begins)

        # Padding is one piece more of each window, so that one gather fills them all.
        behind = begins + counts
        every = np.insert(lengths, behind, size - filled)
        skipped = np.insert(sources, behind, 0) - (np.cumsum(every) - every)
        # In place: new memory for each of these costs more than they do.
        read = np.repeat(skipped, every)
        read += np.arange(len(read))
        # What padding reads is written over; the file may be shorter than a window.
        np.minimum(read, len(self._data) - 2, out=read)
        tokens = self._data[read].astype(np.int32).reshape(-1, size)
        read += 1
        target = self._data[read].astype(np.int32).reshape(-1, size)
        segments = np.repeat(np.insert(places, behind, filled).astype(np.int32), every)
        for row in np.nonzero(filled < size)[0]:
            tokens[row, filled[row] :] = self.about.end
            target[row, filled[row] :] = IGNORED_TARGET
        window = np.repeat(np.arange(len(counts)), counts)
        ends = starts + lengths == self._places[documents]
        said = np.bincount(window, self._bytes[documents] * ends, len(counts))
        return {
            "tokens": tokens,
            "segments": segments.reshape(-1, size),
            "target": target,
            "bytes": said.astype(np.int32),
        }

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
