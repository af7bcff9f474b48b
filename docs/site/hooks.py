"""Hooks of mkdocs: pages that are made, and links that leave docs/.

The README, CONTRIBUTING.md and CHANGELOG.md are pages of the site, and so is every file
of the repository that a page links to. The reference is what docs/reference.py wrote.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "build" / "reference"
NAMES = {
    "README.md": "quick_start.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
EXTERNAL = ("http://", "https://", "mailto:")
LEXERS = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".ipynb": "json"}


def page_of(path):
    """The page of the site that shows a file of the repository."""
    if path in NAMES:
        return NAMES[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return f"source/{path.replace('/', '.')}.md"


def links_of(text):
    """The relative links of a page, outside of its code."""
    for found in LINK.finditer(FENCE.sub("", text)):
        if not found[2].startswith(EXTERNAL):
            yield found[2]


def title_of(path):
    """The title of a page of the repository; readers of the site see no file names."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.search(r"^# (.*)$", text, re.MULTILINE)[1].replace("`", "")


def rewrite_links(text, folder, uri):
    """A page whose links lead to pages of the site.

    Args:
        text: of the page; a link whose words are a file's name gets its title.
        folder: of its file in the repository, which its links start from.
        uri: of the page in the site.
    """

    def rewrite(found):
        words, link, anchor = found[1], found[2], found[3] or ""
        if link.startswith(EXTERNAL):
            return found[0]
        path = os.path.normpath(os.path.join(folder, link))
        if words.endswith(".md") and path.endswith(".md"):
            words = title_of(path)
        target = posixpath.relpath(page_of(path), posixpath.dirname(uri) or ".")
        return f"[{words}]({target}{anchor})"

    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(rewrite, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, LINK.sub(rewrite, text[last:])])


def source_page(path):
    """A file of the repository as a page; of a folder, its names."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(one.name for one in file.iterdir())
        return f"# {path}\n\n" + "\n".join(f"* `{name}`" for name in names)
    text = file.read_text(encoding="utf-8")
    return f"# {path}\n\n````{LEXERS.get(file.suffix, 'text')}\n{text.rstrip()}\n````\n"


def source_index(made):
    """A page that leads to every file that is shown."""
    shown = sorted(uri for uri in made if uri.startswith("source/"))
    rows = [f"* [{made[uri].splitlines()[0][2:]}]({Path(uri).name})" for uri in shown]
    return "\n".join(
        ["# Files", "", "Files that pages lead to, as they are.", "", *rows]
    )


def outer_page(path):
    """A page of the repository's root, as one of the site."""
    text = (ROOT / path).read_text(encoding="utf-8")
    # A table inside a list, which Python-Markdown reads with four spaces.
    text = re.sub(r"^  (?=\|)", "    ", text, flags=re.MULTILINE)
    return rewrite_links(text, "", NAMES[path])


def on_files(files, config):
    """Add the pages that are made."""
    if not REFERENCE.is_dir():
        raise SystemExit("no reference: `make docs` writes it, then the site")
    made = {name: outer_page(path) for path, name in NAMES.items()}
    for file in sorted(REFERENCE.glob("*.md")):
        made[f"reference/{file.name}"] = file.read_text(encoding="utf-8")
    texts = {
        f"docs/{file.src_uri}": file.content_string
        for file in files.documentation_pages()
    }
    texts |= {path: (ROOT / path).read_text(encoding="utf-8") for path in NAMES}
    for name, text in texts.items():
        for link in links_of(text):
            path = os.path.normpath(os.path.join(os.path.dirname(name), link))
            uri = page_of(path)
            if uri.startswith("source/") and uri not in made:
                made[uri] = source_page(path)
    made["source/index.md"] = source_index(made)
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead the links of a page of docs/ to pages of the site."""
    if page.file.generated_by:
        return markdown
    folder = os.path.dirname(f"docs/{page.file.src_uri}")
    return rewrite_links(markdown, folder, page.file.src_uri)
