"""Text: windows of the characters of one file, or of many, the last tenth held out.

Many files are packed once, as they are opened: one behind the other, each with an end
sign, so that windows are full and an epoch has as many of them on any host. The
vocabulary is the sorted set of all characters. Held-out windows lie side by
side, so each of their characters is asked for once; training windows may overlap.
"""

import hashlib
import warnings
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.text.formatting import format_count
from jaxdist.core.text_encoding import decode_text, printable_path
from jaxdist.input.sources import Arrays, SampleIds

_REMEDY: Final = "data.path=FILE, a text in UTF-8, or a folder of them"
END_OF_TEXT: Final = "\x03"
"""What stands behind each of several texts: ETX, end of text."""


class TextWindows:
    """Windows of a sequence of characters; a `Source` of `tokens` and `target`.

    Args:
        tokens: places in the vocabulary, int32 [N], N > `context`.
        vocabulary: the characters, sorted.
        context: characters a window.
        stride: characters from one window's start to the next.

    >>> text = TextWindows(np.arange(7, dtype=np.int32), "abcdefg", context=3, stride=2)
    >>> len(text), text.get(np.array([1]))["tokens"].tolist()
    (2, [[2, 3, 4]])
    >>> text.get(np.array([1]))["target"].tolist()
    [[3, 4, 5]]
    """

    def __init__(
        self, tokens: NDArray[np.int32], vocabulary: str, *, context: int, stride: int
    ) -> None:
        self._tokens, self._context, self._stride = tokens, context, stride
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        # A window needs one character more than it shows: the last target.
        return (len(self._tokens) - self._context - 1) // self._stride + 1

    def get(self, ids: SampleIds) -> Arrays:
        """Read windows: int [n] to `tokens` and `target`, one later, int32 [n, T]."""
        # One gather for inputs and targets: they share all but one character.
        starts = ids.astype(np.int64)[:, None] * self._stride
        windows = self._tokens[starts + np.arange(self._context + 1)]
        return {"tokens": windows[:, :-1], "target": windows[:, 1:]}

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the characters and of how they are cut."""
        head = f"{self.vocabulary} {self._context} {self._stride}"
        digest = hashlib.sha256(head.encode())
        digest.update(np.ascontiguousarray(self._tokens).data)
        return digest.hexdigest()


def open_text(
    path: str, *, context: int, stride: int | None = None
) -> tuple[TextWindows, TextWindows]:
    """Open a text file, or the text files of a folder, as windows of characters.

    Args:
        path: a file in UTF-8, or in UTF-16 with a byte order mark, whose line ends stay
            as they are; or a folder, of which every `.txt` file is read, in
            the order of their paths, `END_OF_TEXT` behind each.
        context: characters a window.
        stride: characters from one training window's start to the next; None puts the
            windows side by side.

    Returns:
        Training windows of the first nine tenths and held-out windows of the rest.

    Raises:
        BadInput: no such file, no text, or too little of it.
    """
    if not path:
        raise BadInput(
            "there is no text to read",
            rule="data.name=text reads the file data.path",
            values="data.path is empty",
            remedy=_REMEDY,
        )
    if Path(path).is_dir():
        files, passed = list_texts(Path(path))
        if not files:
            raise BadInput(
                f"no text in {path}",
                rule="a folder of texts has files that end in .txt",
                values=f"{path} has none",
                remedy=_REMEDY,
            )
        if passed:
            shown = ", ".join(str(p.relative_to(path)) for p in passed[:3])
            more = ", ..." if len(passed) > 3 else ""
            warnings.warn(
                printable_path(
                    f"passed over in {path}: hidden or other than .txt: "
                    f"{len(passed):,} ({shown}{more})"
                ),
                JaxdistWarning,
                stacklevel=2,
            )
        text = "".join(_read_file(file) + END_OF_TEXT for file in files)
    else:
        text = _read_file(Path(path))

    tokens, vocabulary = encode_characters(text)
    # In the order of the text: shuffled windows would overlap with held-out ones.
    border = len(text) * 9 // 10
    held_out = len(text) - border
    if held_out <= context:
        raise BadInput(
            f"{path} is too short",
            rule="the last tenth of a text has more than data.context characters",
            values=f"{format_count(held_out)} of {format_count(len(text))} characters, "
            f"data.context = {context}",
            remedy=f"data.context={held_out - 1}"
            if held_out > 1
            else f"a text of {format_count(10 * (context + 1))} characters",
        )
    train = TextWindows(
        tokens[:border], vocabulary, context=context, stride=stride or context
    )
    test = TextWindows(tokens[border:], vocabulary, context=context, stride=context)
    return train, test


def encode_characters(text: str) -> tuple[NDArray[np.int32], str]:
    """Give each character its place in the sorted set of all.

    >>> encode_characters("banana")[1], encode_characters("banana")[0].tolist()
    ('abn', [1, 0, 2, 0, 2, 0])
    """
    # As fixed-width numbers NumPy sorts them at once, whatever their number.
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known, tokens = np.unique(codes, return_inverse=True)
    return tokens.astype(np.int32), "".join(map(chr, known.tolist()))


def list_texts(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the texts of a folder and of those in it, and the files passed over."""
    texts: list[Path] = []
    passed: list[Path] = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_dir():
            continue
        is_hidden = any(part.startswith(".") for part in parts)
        is_text = path.suffix.lower() == ".txt" and not is_hidden
        (texts if is_text else passed).append(path)
    return texts, passed


def _read_file(path: Path) -> str:
    """Read a file whole."""
    try:
        # As bytes: text mode would change line ends.
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"no text in {path}",
            rule="data.path is a file that can be read",
            values=error.strerror or str(error),
            remedy=_REMEDY,
        ) from error
    text = decode_text(data, path)
    if not text:
        raise BadInput(f"{path} is empty", rule="a text has characters", remedy=_REMEDY)
    return text
