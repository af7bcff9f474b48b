"""The Dockerfile copies what the wheel is made of, and makes the image that pages name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "launch" / "launchers" / "scripts"
TEXT = (SCRIPTS / "Dockerfile").read_text(encoding="utf-8")


def copied():
    """What is copied from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.MULTILINE)
    return {name for line in lines for name in line.split()[:-1]}


def test_it_copies_what_is_there_and_what_links_of_the_package_lead_to():
    assert all((ROOT / name).exists() for name in copied())
    links = {p.name for p in (ROOT / "jaxdist").iterdir() if p.is_symlink()}
    assert links | {"jaxdist", "pyproject.toml", "README.md", "LICENSE"} <= copied()


def test_its_python_is_one_that_the_package_takes():
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", TEXT, re.MULTILINE)
    assert f"Python :: {python}" in (ROOT / "pyproject.toml").read_text()


def test_its_extras_are_those_of_the_package():
    extras = re.findall(r"EXTRA=(\w+)", TEXT)
    assert extras
    for extra in extras:
        assert re.search(rf"^{extra} = ", (ROOT / "pyproject.toml").read_text(), re.M)


def test_the_manifest_and_the_page_name_its_image():
    (image,) = set(re.findall(r"-t (\S+) \.$", TEXT, re.MULTILINE))
    assert f"image: {image}\n" in (SCRIPTS / "jobset.yaml").read_text()
    page = (ROOT / "docs" / "launch.md").read_text()
    assert f"--image {image} " in page
    assert f"-t {image} ." in page
