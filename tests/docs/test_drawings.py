"""docs/drawings are what docs/drawings.py makes, and pages show all of them."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "drawings.py"))
DRAWINGS = SCRIPT["DRAWINGS"]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_committed_drawing_is_the_one_the_script_makes(name):
    committed = (DOCS / "drawings" / name).read_text(encoding="utf-8")
    assert DRAWINGS[name]() == committed, "write it again: python docs/drawings.py"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_an_image_with_a_title_for_light_and_dark(name):
    text = (DOCS / "drawings" / name).read_text(encoding="utf-8")
    tree = ElementTree.fromstring(text)
    assert tree.find("{http://www.w3.org/2000/svg}title").text
    assert "prefers-color-scheme: dark" in text


def test_every_drawing_is_there_once_and_on_a_page():
    assert {path.name for path in (DOCS / "drawings").iterdir()} == set(DRAWINGS)
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    for name in DRAWINGS:
        assert f"](drawings/{name})" in pages
