"""Clips: short films, each with a sentence that says what happens in it.

A vocabulary is the signs of `jaxdist.core.special_tokens` and then the sorted words of
all captions. A file of clips is a NumPy archive of `clip`, uint8 [N, T, H, W, C], and
`caption`, N strings; the last tenth is held out.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, decoder_errors
from jaxdist.core.special_tokens import BOS_ID, EOS_ID, PAD_ID, SPECIAL_TOKENS
from jaxdist.input.sources import Arrays, SampleIds

Pixels = NDArray[np.uint8]


class Clips:
    """A `Source` of `clip`, `words` and `target`, held in memory.

    Args:
        clips: [N, T, H, W, C], values 0 to 255.
        captions: of each clip, words between blanks.
        vocabulary: signs and words.
        length: words of the longest caption, its end included, L.

    >>> film = np.zeros((1, 2, 4, 4, 1), np.uint8)
    >>> clips = Clips(film, ["a b"], build_vocabulary(["a b"]), length=4)
    >>> one = clips.get(np.array([0]))
    >>> one["words"].tolist(), one["target"].tolist()
    ([[1, 3, 4, 0]], [[3, 4, 2, 0]])
    """

    def __init__(
        self,
        clips: Pixels,
        captions: Sequence[str],
        vocabulary: tuple[str, ...],
        length: int,
    ) -> None:
        self.captions, self.vocabulary = tuple(captions), vocabulary
        self._clips = clips
        places = {word: place for place, word in enumerate(vocabulary)}
        # A caption's words, `EOS_ID`, and then `PAD_ID`: int32 [N, length].
        self._target = np.full((len(captions), length), PAD_ID, np.int32)
        for row, caption in zip(self._target, captions):
            words = [*(places[word] for word in caption.split()), EOS_ID]
            row[: len(words)] = words

    def __len__(self) -> int:
        return len(self._clips)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...].

        Returns:
            `clip` float32 [n, T, H, W, C] in [0, 1]; `words` and `target` int32
            [n, L], the caption behind `BOS_ID` and before `EOS_ID`.
        """
        target = self._target[ids]
        words = np.full_like(target, BOS_ID)
        # Teacher forcing: the network reads each word and is asked for the next.
        # The end is no input: behind it nothing is asked for.
        words[:, 1:] = np.where(target == EOS_ID, PAD_ID, target)[:, :-1]
        clip = self._clips[ids] / np.float32(255)
        return {"clip": clip, "words": words, "target": target}

    @cached_property
    def fingerprint(self) -> str:
        """Digest of every pixel and word."""
        digest = hashlib.sha256(repr((self._clips.shape, self.captions)).encode())
        digest.update(np.ascontiguousarray(self._clips).data)
        return digest.hexdigest()


def build_vocabulary(captions: Sequence[str]) -> tuple[str, ...]:
    """Return the signs, and the words of all captions in their order.

    >>> build_vocabulary(["a b", "c a"])
    ('<padding>', '<begin>', '<end>', 'a', 'b', 'c')
    """
    return (
        *SPECIAL_TOKENS,
        *sorted({word for caption in captions for word in caption.split()}),
    )


def max_caption_length(captions: Sequence[str]) -> int:
    """Count the words of the longest caption, its end included."""
    return 1 + max(len(caption.split()) for caption in captions)


def decode_caption(tokens: Sequence[int], vocabulary: Sequence[str]) -> str:
    """Return the words before the first `EOS_ID`.

    >>> decode_caption([3, 4, 2, 4], ("<padding>", "<begin>", "<end>", "a", "b"))
    'a b'
    """
    # A network may say more behind the end; it means nothing.
    ends = [place for place, token in enumerate(tokens) if token == EOS_ID]
    said = tokens[: ends[0]] if ends else tokens
    return " ".join(vocabulary[token] for token in said)


def open_clips(path: str) -> tuple[Clips, Clips]:
    """Open a file of clips.

    Args:
        path: a NumPy archive, as `numpy.savez` writes it.

    Returns:
        The first nine tenths, and the last tenth.

    Raises:
        BadInput: no such file, or not what a file of clips holds.
    """
    with (
        decoder_errors(lambda said: _no_clips_error(path, said)),
        # Without pickles, whose reading runs code.
        np.load(path or "no path", allow_pickle=False) as file,
    ):
        clips, texts = file["clip"], file["caption"]
    if clips.dtype != np.uint8 or clips.ndim != 5 or texts.dtype.kind != "U":
        found = f"clip {clips.dtype} {list(clips.shape)}, caption {texts.dtype}"
        raise _no_clips_error(path, found)
    if texts.shape != clips.shape[:1] or len(texts) < 2:
        found = f"{len(clips)} clips, captions {list(texts.shape)}"
        raise _no_clips_error(path, found)

    # One vocabulary for both parts: held-out captions may have words of their own.
    captions = [str(caption) for caption in texts]
    vocabulary, length = build_vocabulary(captions), max_caption_length(captions)
    border = len(captions) * 9 // 10
    return (
        Clips(clips[:border], captions[:border], vocabulary, length),
        Clips(clips[border:], captions[border:], vocabulary, length),
    )


def _no_clips_error(path: str, values: str) -> BadInput:
    return BadInput(
        f"no clips in {path}" if path else "there are no clips to read",
        rule="data.name=clips reads data.path: clip, uint8 [N, T, H, W, C], and "
        "caption, N strings, N at least 2",
        values=values if path else "data.path is empty",
        remedy=(
            "numpy.savez(FILE, clip=..., caption=...), then data.path=FILE",
            "data.name=moving_digits needs no file",
        ),
    )
