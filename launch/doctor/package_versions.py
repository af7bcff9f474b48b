"""Requirements: the packages that jaxdist declares, and those that are installed."""

import re
from importlib import metadata

from jaxdist.launch.run_folder.lockfile import TRACKED_PACKAGES


def declared_requirements() -> dict[str, str]:
    """Return what jaxdist declares; no ranges where it runs from a bare checkout."""
    try:
        lines = metadata.requires("jaxdist") or []
    except metadata.PackageNotFoundError:
        return dict.fromkeys(TRACKED_PACKAGES, "")
    plain = [line.split(";")[0] for line in lines if "extra ==" not in line]
    return {package_name(line): line[len(package_name(line)) :] for line in plain}


def installed_versions() -> dict[str, str]:
    """Return the version of every package that is declared and found."""
    found = {}
    for package in dict.fromkeys([*TRACKED_PACKAGES, *declared_requirements()]):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def in_range(version: str, specifier: str) -> bool:
    """Tell whether a version is in a range of `>=`, `<` and `==` bounds.

    >>> in_range("0.10.2", ">=0.10,<0.12"), in_range("0.12.0rc1", ">=0.10,<0.12")
    (True, False)
    >>> in_range("2.0", ">=2.0.0"), in_range("2.0.1", ">=2.0,==2.0")
    (True, True)
    """
    bounds = re.findall(r"(>=|<|==)\s*([\d.]+)", specifier)
    have = _release_numbers(version)
    holds = {
        ">=": lambda bound: have >= bound,
        "<": lambda bound: have < bound,
        "==": lambda bound: have[: len(bound)] == bound,
    }
    return all(holds[sign](_release_numbers(bound)) for sign, bound in bounds)


def package_name(requirement: str) -> str:
    """Return the name that a requirement starts with.

    >>> package_name("jax>=0.10,<0.12"), package_name("orbax-checkpoint>=0.12")
    ('jax', 'orbax-checkpoint')
    """
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _release_numbers(version: str) -> tuple[int, ...]:
    """Return the release as numbers, `2.0.0` as `2`."""
    found = re.match(r"\d+(\.\d+)*", version)
    release = [int(part) for part in found[0].split(".")] if found else []
    while release and release[-1] == 0:
        release.pop()
    return tuple(release)
