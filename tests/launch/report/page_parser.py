"""A page read strictly, for what it says and what it is made of."""

import re
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed where it was opened."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.text, self.open, self.elements = "", [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        attributes = dict(attributes)
        parent = self.open[-1] if self.open else None
        self.elements.append((name, attributes, parent))
        if name not in VOID:
            self.open.append((name, attributes))

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes), self.open[-1]))

    def handle_endtag(self, name):
        assert self.open.pop()[0] == name

    def handle_data(self, data):
        if not self.open or self.open[-1][0] not in ("style", "script"):
            self.text += data

    def all(self, name):
        return [
            attributes for element, attributes, _ in self.elements if element == name
        ]

    @property
    def prose(self):
        return re.sub(r"\s+", " ", self.text)
