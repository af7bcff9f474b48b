"""The README and docs/ speak of commands, keys, files and modules that exist."""

import ast
import os
import re
import runpy
import shlex
from pathlib import Path

import pytest

from jaxdist.launch.cli.main import make_parser
from jaxdist.launch.cli.option_aliases import read_words
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_model import load_profile_config

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "README.md"
CI = runpy.run_path(str(ROOT / ".ci" / "commands.py"))
PAGES = CI["pages"]()
BLOCKS = [block for page in PAGES for block in CI["blocks"](page)]
LANGUAGES = {"bash", "python", "text", "json", "yaml"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
DECISIONS = ROOT / "docs" / "adr"
EXTERNAL = ("http://", "https://", "#", "mailto:")


def of(language):
    return [b for b in BLOCKS if b.language == language]


def named(block):
    return f"{block.page}: {block.text.splitlines()[0][:40]}"


def test_every_fence_is_read_and_says_its_language():
    fences = sum(page.read_text().count("\n```") for page in PAGES)
    assert fences == 2 * len(BLOCKS)
    assert {block.language for block in BLOCKS} <= LANGUAGES


def test_the_readme_shows_the_two_commands_and_they_run():
    shown = {c for b in of("bash") if b.page == "README.md" for c in b.commands}
    assert {"make train", "make test"} <= shown
    assert all(b.reason is None for b in BLOCKS if b.page == "README.md")


@pytest.mark.parametrize("command", sorted({c for b in of("bash") for c in b.commands}))
def test_a_command_exists(command):
    program, *words = shlex.split(command)
    match program:
        case "jaxdist":
            read(words)
        case "make":
            assert {w for w in words if "=" not in w} <= TARGETS
        case "python":
            assert (ROOT / words[0]).is_file()
        case _:
            others = {"source", "sha256sum", ".ci/run", "pip", "tfds", "docker"}
            assert program in others


def read(words):
    if words[0] in ("--help", "--version"):
        return
    args = read_words(make_parser(words[0]), words[1:]).args
    if words[0] == "profile":
        load_profile_config(args.model, args.overrides)
    elif (name := experiment_of(args)) and ".py" not in name:
        resolve_config(name, args.overrides)


def experiment_of(args):
    """The experiment that a command is about; None where it is about something else."""
    return getattr(args, "experiment", None) if hasattr(args, "overrides") else None


@pytest.mark.parametrize("block", of("python"), ids=named)
def test_python_is_python_and_imports_what_exists(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("jaxdist"):
            module = __import__(node.module, fromlist=["_"])
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    inner = [link for link in links if not link.startswith(EXTERNAL)]
    for link in inner:
        assert (page.parent / link.split("#")[0]).exists(), link


def test_the_tree_of_contributing_is_the_tree():
    page = "CONTRIBUTING.md"
    (tree,) = (b for b in BLOCKS if b.page == page and b.language == "text")
    parents, shown = [], set()
    for line in tree.text.splitlines():
        name = re.match(r"( *)(\S+)", line)
        depth = len(name[1]) // 2
        parents[depth:] = [name[2].rstrip("/")]
        path = ROOT.joinpath(*parents)
        assert path.exists(), path
        shown.add(str(path.relative_to(ROOT)))
    packages = {
        p.name
        for p in (ROOT / "jaxdist").iterdir()
        if (p / "__init__.py").is_file() and not p.is_symlink()
    }
    assert {f"jaxdist/{package}" for package in packages} <= shown


def test_contributing_names_files_and_what_is_in_them():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = set(re.findall(r"`(\w+/[\w/]+\.py)`", text))
    assert len(files) > 25
    for file in files:
        assert "NAME" in file or (ROOT / file).is_file(), file
    placed = re.findall(r"`(\w+)`\s+\(`(\w+/[\w/]+\.py)`", text)
    assert len(placed) >= 8
    for name, file in placed:
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), (name, file)


def test_every_page_is_listed_in_the_index():
    text = INDEX.read_text()
    for page in PAGES:
        if page.parent != DECISIONS or page.name == "README.md":
            assert page == INDEX or f"({os.path.relpath(page, INDEX.parent)})" in text


def test_the_readme_is_short_and_leads_to_the_index():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 90
    assert all(len(line) <= 120 for line in lines if not line.startswith("|"))
    for page in ("docs/README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        assert any(f"({page})" in line for line in lines), page


def test_pages_carry_no_dates_of_measurements():
    """They are in docs/results and in the README's table, both made from data."""
    made = {ROOT / "README.md", ROOT / "docs" / "benchmarks.md"}
    for page in set(PAGES) - made:
        if page.parent != ROOT / "docs":
            continue
        lines = page.read_text().splitlines()
        dated = [x for x in lines if re.search(r"\b20\d\d-\d\d-\d\d\b", x)]
        # When a constant was measured belongs to it; so does when others' code was
        # read.
        kept = ("origin:", "read on ")
        assert [x for x in dated if not any(word in x for word in kept)] == [], page


def test_every_decision_is_listed_once_in_its_index_and_numbers_have_no_gap():
    index = (DECISIONS / "README.md").read_text()
    row = r"^\| (\d{4}) \| \[(.+)\]\((.+)\) \|"
    listed = re.findall(row, index, re.MULTILINE)
    files = sorted(p for p in DECISIONS.glob("*.md") if p.name != "README.md")
    assert [name for *_, name in listed] == [p.name for p in files]
    for place, ((number, title, name), page) in enumerate(zip(listed, files), 1):
        assert int(number) == place
        assert name.startswith(f"{number}-")
        assert page.read_text().startswith(f"# {place}. {title}\n")


@pytest.mark.parametrize(
    ("page", "alone", "plain"),
    [
        ("README.md", True, False),
        ("docs/prediction.md", True, False),
        ("docs/training.md", False, False),
        ("docs/compression.md", False, True),
    ],
)
def test_pages_that_measure_are_compiled_as_people_get_them(page, alone, plain):
    path = ROOT / page
    assert CI["is_alone"](path) == alone
    assert bool(CI["flags_of"](path)) == plain
