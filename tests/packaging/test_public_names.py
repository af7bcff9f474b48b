"""What is public: names that `jaxdist.__doc__` places, documented and used by the docs."""

import ast
import inspect
import re
import runpy
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import jaxdist

ROOT = Path(__file__).parents[2]
MODULES = re.findall(r"^    (jaxdist[\w.]*)  ", jaxdist.__doc__, re.MULTILINE)
CI = runpy.run_path(str(ROOT / ".ci" / "commands.py"))
DOCS = [page for page in CI["pages"]() if page.name != "CONTRIBUTING.md"]
PROGRAMS = {
    f"{page.relative_to(ROOT)}-{number}": block.text
    for page in DOCS
    for number, block in enumerate(CI["blocks"](page))
    if block.language == "python"
} | {"docs/my.py": (ROOT / "docs" / "my.py").read_text()}


def exported(module):
    """Public names of a module and what they are."""
    return {name: getattr(module, name) for name in module.__all__}


@pytest.mark.parametrize("name", MODULES)
def test_public_names_resolve_and_have_docstrings(name):
    module = import_module(name)
    assert module.__doc__
    assert set(module.__all__) <= set(dir(module))
    for public, found in exported(module).items():
        if callable(found):
            assert inspect.getdoc(found), public
            # That of a dataclass without one is its signature.
            assert not found.__doc__.startswith(f"{public}("), public


@pytest.mark.parametrize("name", MODULES)
def test_no_submodule_has_the_name_of_a_public_one(name):
    module = import_module(name)
    submodules = {found.name for found in iter_modules(getattr(module, "__path__", []))}
    shared = submodules & set(module.__all__)
    assert all(inspect.ismodule(getattr(module, public)) for public in shared), shared


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_listed_for_the_type_checker_too(name):
    """A lazy name is written twice: for Python, and for mypy under TYPE_CHECKING."""
    module = import_module(name)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    own = {
        public
        for public, found in exported(module).items()
        if getattr(found, "__module__", None) == name
    }
    assert set(module.__all__) <= imported | own


def test_nothing_public_has_two_meanings():
    """Two modules may export one thing, never two things by one name."""
    meaning = {}
    for name in MODULES:
        for public, found in exported(import_module(name)).items():
            assert meaning.setdefault(public, found) is found, public


def workers(tree):
    """Programs inside a program: texts that it writes to a file."""
    for node in ast.walk(tree):
        text = getattr(node, "value", None)
        if isinstance(text, str) and "from jaxdist" in text:
            yield ast.parse(text)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_docs_import_public_names_only(program):
    tree = ast.parse(PROGRAMS[program])
    for node in (n for part in (tree, *workers(tree)) for n in ast.walk(part)):
        if isinstance(node, ast.Import):
            ours = {a.name for a in node.names if a.name.startswith("jaxdist")}
            assert ours <= set(MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("jaxdist"):
            assert node.module in MODULES
            public = import_module(node.module).__all__
            assert {alias.name for alias in node.names} <= set(public)


def test_the_index_of_the_docs_lists_the_public_modules():
    rows = re.findall(
        r"^\| `(jaxdist[\w.]*)` \|", (ROOT / "docs/README.md").read_text(), re.M
    )
    assert rows == MODULES
