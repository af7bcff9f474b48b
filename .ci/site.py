"""Checks a built site: links and anchors, nothing from elsewhere, two clicks to a page.

python3 .ci/site.py FOLDER
"""

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

CLICKS = 2
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "link": "href",
}
"""Attributes by element whose address a browser fetches by itself."""


@dataclass
class Page(HTMLParser):
    """The addresses and anchors of a page."""

    links: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's address and id."""
        found = dict(attrs)
        if name := found.get("id"):
            self.anchors.add(name)
        if tag == "a" and (link := found.get("href")):
            self.links.add(link)
        address = found.get(LOADED.get(tag, ""))
        if address and found.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.add(address)


def read_page(path: Path) -> Page:
    """Return what an HTML file leads to and has."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def check(site: Path) -> list[str]:
    """Return what is wrong with a site, a line each."""
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html"))}
    pages.pop(site / "404.html", None)  # its addresses begin at a server's root
    wrong, inner = [], {}
    for path, page in pages.items():
        name, inner[path] = path.relative_to(site), set()
        for address in sorted(page.links | page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    wrong.append(f"{name}: fetches {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve()
            target = path if not parts.path else target
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                wrong.append(f"{name}: no {address}")
            elif target in pages:
                inner[path].add(target)
                anchor = unquote(parts.fragment)
                if anchor and anchor not in pages[target].anchors:
                    wrong.append(f"{name}: no anchor {address}")
    seen = {site / "index.html"}
    for _ in range(CLICKS):
        seen |= {target for path in seen for target in inner[path]}
    far = sorted(set(pages) - seen)
    wrong += [f"{path.relative_to(site)}: more than {CLICKS} clicks" for path in far]
    print(f"{len(pages)} pages, {sum(map(len, inner.values()))} links between them")
    return wrong


def main() -> int:
    """Check the site of the command line; 1 if anything is wrong."""
    (name,) = sys.argv[1:]
    wrong = check(Path(name).resolve())
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
