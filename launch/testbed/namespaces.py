"""Spaces: the hosts in a box that there are, by what has their names, and their end."""

import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from jaxdist.launch.testbed.iproute import attempt, do

_PREFIX: Final = "jaxdist"
FILES: Final = Path("/etc/netns")
"""Folder of what a host has in place of files in /etc, a folder a host."""


def own_name() -> str:
    """Return a name that is removed by others when this process is gone."""
    return f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"


def remove(name: str) -> list[str]:
    """Remove what has names that begin so, and end what runs there.

    Returns:
        The names, of hosts and of their switch.
    """
    found = sorted(each for each in known() if each.startswith(f"{name}-"))
    _remove(found)
    return found


def sweep() -> list[str]:
    """Remove the hosts of processes that are gone, and return their names."""
    names = [(name, re.match(rf"{_PREFIX}-(\d+)-", name)) for name in known()]
    dead = [name for name, own in names if own and not Path("/proc", own[1]).exists()]
    _remove(dead)
    return dead


def write_names(host: str, address: str) -> None:
    """Let a machine's name be the host's own address: there gloo listens."""
    folder = FILES / host
    folder.mkdir(parents=True, exist_ok=True)
    names = f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n"
    (folder / "hosts").write_text(names)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in do("ip", "netns", "list").splitlines() if line]


def known() -> set[str]:
    """Name all hosts that left a namespace or a file of names."""
    files = (path.name for path in FILES.iterdir()) if FILES.exists() else ()
    return {*_namespaces(), *files}


def _remove(names: Iterable[str]) -> None:
    """Remove hosts; what somebody else has removed in the meantime is no error."""
    names = set(names)
    for name in names & set(_namespaces()):
        running = attempt("ip", "netns", "pids", name).stdout.split()
        if running:
            attempt("kill", "-KILL", *running)
        attempt("ip", "netns", "delete", name)
    for name in names:
        shutil.rmtree(FILES / name, ignore_errors=True)
    for name in names & set(_namespaces()):
        do("ip", "netns", "delete", name)
