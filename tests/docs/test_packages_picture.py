"""docs/packages.svg is what docs/packages.py makes of the imports as they are."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "packages.py"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def layers():
    return SCRIPT["layers_by_package"]()


def test_the_committed_picture_is_the_one_the_script_makes():
    committed = (DOCS / "packages.svg").read_text(encoding="utf-8")
    assert SCRIPT["draw"]() == committed, "write it again: python docs/packages.py"


def test_it_shows_every_package_of_the_contracts_once(layers):
    tree = ElementTree.parse(DOCS / "packages.svg")
    shown = [text.text for text in tree.iter(f"{SVG}text")]
    names = [
        name for contract in layers.values() for layer in contract for name in layer
    ]
    assert sorted(shown) == sorted(name.rpartition(".")[2] for name in names)


def test_every_package_with_files_is_in_a_contract(layers):
    known = {
        name for contract in layers.values() for layer in contract for name in layer
    }
    for parent in layers:
        inner = SCRIPT["folder"](parent).glob("*/__init__.py")
        assert {f"{parent}.{path.parent.name}" for path in inner} <= known


def test_arrows_that_follow_from_others_are_left_out():
    layers = [["a"], ["b"], ["c"]]
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert SCRIPT["needed_arrows"](layers, imports) == [("a", "b"), ("b", "c")]


def test_an_import_against_the_order_is_an_error():
    with pytest.raises(ValueError, match="b imports a, which is not below it"):
        SCRIPT["needed_arrows"]([["a"], ["b"]], {"a": set(), "b": {"a"}})


def test_imports_are_found_wherever_they_stand(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        "import jaxdist.core\ndef f():\n    from jaxdist import train, models as m\n"
    )
    found = set(SCRIPT["imported_modules"](file))
    assert {"jaxdist.core", "jaxdist.train", "jaxdist.models"} <= found
