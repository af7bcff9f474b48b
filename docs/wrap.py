"""Wraps the prose of pages at 120 characters; tables, code and headings stay.

A paragraph or item is wrapped anew where one of its lines is longer.

    python docs/wrap.py [PAGE]...
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
WIDTH = 120
WORD = re.compile(r"(?:`[^`]*`|\S)+")
"""Words, and code with its spaces."""
ITEM = re.compile(r"( *)([*-]|\d+\.) ")
BEGINS_SOMETHING = re.compile(r"[*+-]$|\d+[.)]$|[|<>#]|!\[|```")
"""A word that at the start of a line would begin an item, a heading or a table."""


def wrap(words, first, following):
    """Lines of at most `WIDTH` characters, with what stands before their words."""
    joined = words[:1]
    for word in words[1:]:
        if BEGINS_SOMETHING.match(word):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    lines, line = [], first + joined[0]
    for word in joined[1:]:
        if len(line) + 1 + len(word) <= WIDTH:
            line += f" {word}"
        else:
            lines.append(line)
            line = following + word
    return [*lines, line]


def wrap_block(lines):
    """A paragraph or an item, wrapped if a line of it is too long."""
    if all(len(line) <= WIDTH for line in lines):
        return lines
    text = " ".join(line.strip() for line in lines)
    item = ITEM.match(lines[0])
    first = item[0] if item else re.match(" *", lines[0])[0]
    words = WORD.findall(text.removeprefix(first.strip()) if item else text)
    return wrap(words, first, " " * len(first))


def wrap_page(text):
    """A page whose prose is wrapped."""
    made, block, is_code = [], [], False

    def end_block():
        made.extend(wrap_block(block) if block else [])
        block.clear()

    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        plain = is_code or fence or not line.strip()
        if plain or line.lstrip().startswith(("|", "#", "<", "![")):
            end_block()
            made.append(line)
        else:
            if ITEM.match(line):
                end_block()
            block.append(line)
        is_code ^= fence
    end_block()
    return "\n".join(made) + "\n"


def pages():
    """The pages that are written by hand."""
    made = {DOCS / "benchmarks.md", *(DOCS / "results").iterdir()}
    return [DOCS.parent / "CONTRIBUTING.md", *sorted({*DOCS.rglob("*.md")} - made)]


def main():
    """Wrap the pages that are named, or all."""
    for page in map(Path, sys.argv[1:]) if sys.argv[1:] else pages():
        text = page.read_text(encoding="utf-8")
        if (wrapped := wrap_page(text)) != text:
            page.write_text(wrapped, encoding="utf-8")


if __name__ == "__main__":
    main()
