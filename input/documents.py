"""Documents: the texts of a file or a folder, one after the other.

A `.jsonl` file has an object a line with its text under `text`, a folder a document in
each `.txt` file, and any other file is one text that a separator cuts into documents.
Empty documents, and those of blanks alone, are left out and counted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.text_encoding import decode_text, read_text
from jaxdist.input.text import list_texts

DEFAULT_SEPARATOR: Final = "<|endoftext|>"
"""What stands between the documents of one file, where nothing else is said."""


class Documents:
    """The documents of a file or a folder; may be gone through several times.

    Args:
        path: a `.jsonl` file, a folder of `.txt` files, or another file of text.
        separator: what stands between the documents of one file of text.

    Raises:
        BadInput: there is nothing to read, or nothing that separates.
    """

    def __init__(self, path: Path, separator: str = DEFAULT_SEPARATOR) -> None:
        if not separator:
            raise BadInput(
                "an empty separator stands between no documents",
                rule="--separator is a text that stands between documents, and nowhere "
                "in them",
                values="--separator ''",
                remedy=r"--separator '\n\n'",
            )
        self._path, self._separator, self.empty = path, separator, 0
        self._files = [path]
        if path.is_dir():
            self._files, _ = list_texts(path)
        if not self._files or not path.exists():
            raise BadInput(
                f"no documents in {path}",
                rule="documents are the lines of a .jsonl file, the .txt files of a "
                "folder, or the parts of a text file",
                values=f"{path} has no .txt file"
                if path.is_dir()
                else f"{path} is not there",
                remedy="jaxdist prepare text FILE_OR_FOLDER",
            )

    def __iter__(self) -> Iterator[str]:
        """Go through them; `empty` counts those left out on the way."""
        self.empty = 0
        for text in self._read():
            if text.strip():
                yield text
            else:
                self.empty += 1

    def _read(self) -> Iterator[str]:
        if self._path.is_dir():
            yield from map(read_text, self._files)
        elif self._path.suffix == ".jsonl":
            # Line by line: such files may be larger than memory.
            with self._path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield self._parse(decode_text(line, self._path), number)
        else:
            *texts, last = read_text(self._path).split(self._separator)
            # What follows the last separator is most often nothing at all.
            yield from (*texts, last) if last.strip() else texts

    def _parse(self, line: str, number: int) -> str:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            found = str(error)
        else:
            text = row.get("text") if isinstance(row, dict) else None
            # JSON may write halves of characters, which no text in UTF-8 has.
            if isinstance(text, str) and _is_utf8(text):
                return text
            found = f"a {type(row).__name__}"
            if isinstance(row, dict):
                found = f"the keys {', '.join(row) or 'of nothing'}"
            if text is not None:
                found = 'a "text" that is no text in UTF-8'
        raise BadInput(
            f"line {number} of {self._path} is no document",
            rule='each line of a .jsonl file is an object with a "text"',
            values=f"line {number} has {found}",
            remedy='{"text": "..."}',
        )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
