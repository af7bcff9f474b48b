"""The network namespaces of emulated hosts: finding them by name, removing them."""

import os
import re
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from jaxdist.launch.testbed.iproute import run_command, try_command

_PREFIX: Final = "jaxdist"
NETNS_FOLDER: Final = Path("/etc/netns")
"""`ip netns exec` mounts the files of a namespace's folder here over those in /etc."""


def temporary_prefix() -> str:
    """Return a name for namespaces that others remove once this process is gone."""
    # The token tells apart several clusters of one process.
    return f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"


def remove_with_prefix(prefix: str) -> list[str]:
    """Remove the namespaces whose names begin so, and end what runs in them.

    Returns:
        The names, of hosts and of their switch.
    """
    found = sorted(
        each for each in existing_namespaces() if each.startswith(f"{prefix}-")
    )
    _remove_namespaces(found)
    return found


def remove_orphans() -> list[str]:
    """Remove the namespaces of processes that are gone, and return their names."""
    # `temporary_prefix` has the process in the name, so that whoever comes next can
    # tell what a process that was killed has left.
    names = [
        (name, re.match(rf"{_PREFIX}-(\d+)-", name)) for name in existing_namespaces()
    ]
    dead = [name for name, own in names if own and not Path("/proc", own[1]).exists()]
    _remove_namespaces(dead)
    return dead


def _list_namespaces() -> list[str]:
    return [
        line.split()[0]
        for line in run_command("ip", "netns", "list").splitlines()
        if line
    ]


def existing_namespaces() -> set[str]:
    """Name all namespaces that are there, or left a folder of files."""
    # A namespace may be gone while its folder is still there, and the other way round.
    files = (
        (path.name for path in NETNS_FOLDER.iterdir()) if NETNS_FOLDER.exists() else ()
    )
    return {*_list_namespaces(), *files}


def _remove_namespaces(names: Iterable[str]) -> None:
    """Remove namespaces; it is no error if another process removed one meanwhile."""
    names = set(names)
    for name in names & set(_list_namespaces()):
        # A namespace lives as long as a process in it, whatever is deleted.
        running = try_command("ip", "netns", "pids", name).stdout.split()
        if running:
            try_command("kill", "-KILL", *running)
        try_command("ip", "netns", "delete", name)
    for name in names:
        shutil.rmtree(NETNS_FOLDER / name, ignore_errors=True)
    # What is still there could not be deleted: the second try says why.
    for name in names & set(_list_namespaces()):
        run_command("ip", "netns", "delete", name)
