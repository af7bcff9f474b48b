"""The wheel holds `jaxdist/` alone, every room in it as real files; so does the sdist."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("meshes", "models", "input", "launch")
DATA = (
    "jaxdist/py.typed",
    "jaxdist/input/digits.npz",
    "jaxdist/input/digits.LICENSE.txt",
    "jaxdist/launch/report/report.html.j2",
    "jaxdist/launch/report/style.css",
    "jaxdist/launch/report/page.js",
    "jaxdist/launch/launchers/scripts/slurm.sh",
    "jaxdist/launch/sweep/sweep.html.j2",
)


def build(kind, folder):
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as found:
        yield found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as found:
        yield found


def test_it_claims_one_name(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"jaxdist"}


def modules():
    """Every module of the checkout, as it is called inside the package."""
    folders = [ROOT / "jaxdist", *(ROOT / room for room in ROOMS)]
    found = {
        f"{'jaxdist/' * (folder.name != 'jaxdist')}{path.relative_to(ROOT)}"
        for folder in folders
        for path in folder.rglob("*.py")  # does not follow links
    }
    assert len(found) > 90
    return found


def test_every_module_of_the_checkout_is_inside(wheel):
    assert {n for n in wheel.namelist() if n.endswith(".py")} == modules()


def test_a_wheel_can_be_made_of_the_sdist(sdist):
    """A room was missing: its folder is met before `jaxdist/` and entered once only."""
    inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert {name for name in inside if name.endswith(".py")} == modules()
    assert {*DATA, "pyproject.toml", "README.md", "LICENSE"} <= inside
    assert not any(member.issym() or member.islnk() for member in sdist)


def test_rooms_are_files_and_not_links(wheel):
    for info in wheel.infolist():
        kind = info.external_attr >> 16 & 0o170000
        assert kind in (0, 0o100000), info.filename
        assert info.file_size or not info.filename.endswith("__init__.py")


@pytest.mark.parametrize("name", DATA)
def test_data_files_are_inside(wheel, name):
    assert len(wheel.read(name)) == (ROOT / name).stat().st_size


def test_the_command_and_the_licence_are_inside(wheel):
    (entry,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    assert b"jaxdist = jaxdist.launch.cli.main:main" in wheel.read(entry)
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.parametrize("room", ROOMS)
def test_the_links_of_the_checkout_are_relative_and_resolve(room):
    link = ROOT / "jaxdist" / room
    assert os.readlink(link) == f"../{room}"
    assert link.resolve() == (ROOT / room).resolve()
    assert (link / "__init__.py").is_file()
