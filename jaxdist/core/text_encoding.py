"""Encodings: text of files as programs save it, with what to type where it is none.

UTF-8 with or without a byte order mark, and UTF-16 and UTF-32 with theirs, as Windows
programs write them (The Unicode Standard 15, section 23.8).
"""

import codecs
import shlex
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput

# UTF-32 first: its mark begins with that of UTF-16.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ENCODINGS: Final = "UTF-8, or UTF-16 or UTF-32 with a byte order mark"


def marked_encoding(data: bytes) -> tuple[str, int]:
    """Return the encoding that a byte order mark says, and the length of the mark.

    >>> marked_encoding("a".encode("utf-8-sig")), marked_encoding(b"a")
    (('utf-8', 3), ('utf-8', 0))
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding, len(mark)
    return "utf-8", 0


def decode_lenient(data: bytes) -> str:
    """Return the text of a log, in which stray bytes of other programs are replaced."""
    encoding, length = marked_encoding(data)
    return data[length:].decode(encoding, errors="replace")


def decode_text(data: bytes, path: Path | str) -> str:
    """Return the text of a file, without its byte order mark; line ends stay.

    Args:
        data: the whole file.
        path: of the file, for errors.

    Raises:
        BadInput: it is in no such encoding, or holds zero bytes, as no text does.
    """
    encoding, length = marked_encoding(data)
    try:
        text = data[length:].decode(encoding)
    except UnicodeDecodeError as error:
        at = error.start + length
        # What is cut short is in the encoding that it says; other bytes are most often
        # of an 8-bit encoding, of which Windows' is the commonest.
        remedy = _convert(_eight_bit_encoding(data), path)
        if length:
            remedy = f"copy {path} again: it says that it is {encoding}"
        elif guessed := _unmarked_encoding(data):
            remedy = _convert(guessed, path)
        elif 0 in data:
            # No text in an encoding of 8 bits, and not told which of 16 bits.
            remedy = f"save {path} again as UTF-8"
        raise BadInput(
            f"{path} is no text",
            rule=f"a text is in {_ENCODINGS}",
            values=f"byte {at:,} is {data[at]:#04x}, not in {encoding}",
            remedy=remedy,
        ) from error
    if "\0" in text:
        guessed = "" if length else _unmarked_encoding(data)
        raise BadInput(
            f"{path} is no text",
            rule=f"a text is in {_ENCODINGS}, and has no zero bytes",
            values=f"byte {data.index(0):,} is 0x00",
            remedy=_convert(guessed, path)
            if guessed
            else f"tr -d '\\000' < {_quote(path)} > {_quote(f'{path}.txt')}",
        )
    return text


def read_text(path: Path) -> str:
    """Read a text file whole.

    Raises:
        BadInput: it cannot be read, or is no text.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read",
            rule="it is a file that can be read",
            values=error.strerror or str(error),
            remedy=f"ls -l {_quote(path)}",
        ) from error
    return decode_text(data, path)


def printable_path(path: str) -> str:
    """Show a name of any bytes: those that are no text as their numbers."""
    return path.encode("utf-8", "backslashreplace").decode()


def _unmarked_encoding(data: bytes) -> str:
    """Guess the encoding of text without a mark by its zero bytes; empty: no guess."""
    head = data[: 1 << 16]
    # In letters of Europe every second byte of UTF-16 is zero.
    even, odd = (head[start::2].count(0) for start in (0, 1))
    least = len(head) // 8
    if max(even, odd) <= least or min(even, odd) > max(even, odd) // 4:
        return ""
    return "utf-16le" if odd > even else "utf-16be"


def _eight_bit_encoding(data: bytes) -> str:
    """Name the encoding of 8 bits that all bytes are in."""
    try:
        data.decode("windows-1252")
    except UnicodeDecodeError:
        return "latin1"
    # Of the two, only Windows' has letters and quotes from 0x80 to 0x9f.
    high = any(0x80 <= byte < 0xA0 for byte in data)
    return "windows-1252" if high else "latin1"


def _convert(encoding: str, path: Path | str) -> str:
    source, target = _quote(path), _quote(f"{path}.utf8")
    return f"iconv -f {encoding} -t utf-8 {source} > {target}"


def _quote(path: Path | str) -> str:
    return shlex.quote(str(path))
