"""Importing jaxdist costs nothing, and no file claims a generic name."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {"meshes", "models", "input", "launch"}
HEAVY = {"jax", "flax", "numpy", "optax", "orbax", "grain", "rich", "jinja2"}
SOURCES = sorted(
    path
    for folder in ("jaxdist", *ROOMS, "tests", "benchmarks", ".ci")
    for path in (ROOT / folder).rglob("*.py")
)


def loaded_after(code):
    """Top-level modules that a fresh process holds after running `code`."""
    code += "; import sys, json; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return {name.split(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "code",
    [
        "import jaxdist",
        "import jaxdist.launch.cli.main",
        "import jaxdist; jaxdist.Plan",
    ],
)
def test_nothing_heavy_is_imported(code):
    assert not loaded_after(code) & HEAVY


def test_help_needs_no_jax():
    code = "from jaxdist.launch.cli.main import help_text; help_text()"
    assert not loaded_after(code) & {"jax", "flax", "orbax", "grain"}


@pytest.mark.parametrize("module", ["jaxdist", "jaxdist.launch"])
def test_the_package_is_a_command(module):
    words = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("jaxdist ")


def test_every_public_name_resolves():
    code = (
        "import jaxdist; names = set(jaxdist.__all__); "
        "assert names <= set(dir(jaxdist)); [getattr(jaxdist, n) for n in names]"
    )
    assert "jaxdist" in loaded_after(code)


def test_a_name_that_is_not_there():
    import jaxdist

    with pytest.raises(AttributeError, match="no attribute 'plan_of'"):
        _ = jaxdist.plan_of


def test_no_public_name_is_a_room():
    import jaxdist

    engine = {p.name for p in (ROOT / "jaxdist").iterdir() if p.is_dir()}
    assert not engine & set(jaxdist.__all__)


def imported(path):
    """Top-level names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_are_imported_as_part_of_jaxdist(path):
    assert not set(imported(path)) & ROOMS


def test_every_package_inside_another_is_in_a_contract():
    """Which packages may import which is held inside each package too."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    placed = set()
    for contract in tomllib.loads(text)["tool"]["importlinter"]["contracts"]:
        names = re.findall(r"[\w.]+", " ".join(contract["layers"]))
        for container in contract.get("containers", [""]):
            placed |= {f"{container}.{name}".lstrip(".") for name in names}
    inits = (ROOT / "jaxdist").glob("**/__init__.py")
    rooms = (path for room in ROOMS for path in (ROOT / room).glob("**/__init__.py"))
    for path in {p.resolve() for p in (*inits, *rooms)} - {
        ROOT / "jaxdist/__init__.py"
    }:
        package = ".".join(path.parent.relative_to(ROOT).parts)
        assert f"jaxdist.{package.removeprefix('jaxdist.')}" in placed, package
