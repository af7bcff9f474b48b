"""The site has every page in its table of contents, and a reference that leaves nothing out."""

import re
import runpy
from pathlib import Path

import pytest

import jaxdist
from jaxdist.launch.cli.main import command_names, load_command
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.tree import flatten_config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
SECTIONS = re.findall(r"^  - (.+):$", NAVIGATION, re.MULTILINE)
LISTED = re.findall(r"([\w./]+\.md)$", NAVIGATION, re.MULTILINE)
REFERENCE = runpy.run_path(str(DOCS / "reference.py"))
WRAP = runpy.run_path(str(DOCS / "wrap.py"))
CHECK = runpy.run_path(str(ROOT / ".ci" / "site.py"))["check"]


def test_the_contents_are_those_that_are_promised():
    promised = (
        "Start Tutorials How-to Reference Explanation Results Contributing Decisions"
    )
    assert promised.split() == SECTIONS


def test_every_page_is_in_the_contents_once():
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    decisions = {page for page in pages if re.match(r"adr/\d", page)}
    made = {"quick_start.md", "contributing.md", "changelog.md", "source/index.md"}
    reference = {f"reference/{name}" for name in REFERENCE["PAGES"]}
    assert sorted(LISTED) == sorted((pages - decisions) | made | reference)


@pytest.fixture(scope="module")
def made():
    return {name: page() for name, page in REFERENCE["PAGES"].items()}


def options(parser):
    """The options of a parser and of its forms, but for those that help does not show."""
    for action in parser._actions:
        if action.help != "==SUPPRESS==":
            yield from action.option_strings
    for form in parser.forms.values():
        yield from options(form)


def test_every_command_and_option_is_in_the_reference(made):
    text = made["cli.md"]
    for name in command_names():
        parser = CommandParser(f"jaxdist {name}", "", "")
        load_command(name).add_arguments(parser)
        section = text.partition(f"\n## jaxdist {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for option in {*options(parser)} - {"-h", "--help"}:
            assert re.search(rf"(?<!\S|-){option}\b|`{option}\b", section), (
                name,
                option,
            )


def test_every_key_is_in_the_reference_with_its_meaning(made):
    for key in flatten_config(Experiment(name="")):
        row = re.search(
            rf"^\| `{re.escape(key)}` \|.*\| (.*) \|$", made["keys.md"], re.M
        )
        assert row, key
        assert row[1], f"{key} has no docstring"


def test_every_public_name_is_in_the_reference(made):
    for name in jaxdist.__all__:
        assert f"\n### {name}\n" in made["python.md"]
    for module in REFERENCE["public_modules"]():
        assert f"\n## {module}\n" in made["python.md"]


@pytest.mark.parametrize("page", WRAP["pages"](), ids=lambda path: path.name)
def test_prose_has_lines_of_at_most_120_characters(page):
    text = page.read_text(encoding="utf-8")
    assert WRAP["wrap_page"](text) == text, "wrap it: python docs/wrap.py"


def test_wrapping_changes_no_word_and_begins_no_list():
    words = "a" * 60, "b" * 50, "-", "`code of two words`", "* no item", "1. none"
    text = f"* {' '.join(words)} [link](page.md) {'c' * 100}\n\n| a |\n```text\n{'d' * 130}\n```\n"
    wrapped = WRAP["wrap_page"](text)
    assert " ".join(wrapped.split()) == " ".join(text.split())
    assert [line[:2] for line in wrapped.splitlines()[:3]] == ["* ", "  ", "  "]
    assert not re.search(r"^ *(- |1\. )|^  \* ", wrapped, re.MULTILINE)
    assert WRAP["wrap_page"](wrapped) == wrapped


def test_a_site_with_a_wrong_link_is_found(tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="a.html">a</a><a href="none.html">none</a><script src="https://x.y/z">'
    )
    (tmp_path / "a.html").write_text('<h2 id="here"></h2><a href="b.html#not">b</a>')
    (tmp_path / "b.html").write_text('<a href="c.html"></a><a href="a.html#here"></a>')
    (tmp_path / "c.html").write_text("")
    assert CHECK(tmp_path) == [
        "a.html: no anchor b.html#not",
        "index.html: fetches https://x.y/z",
        "index.html: no none.html",
        "c.html: more than 2 clicks",
    ]
