"""Spaces: the hosts in a box that there are, by what has their names, and their end."""

import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from jaxdist.launch.testbed.iproute import run_command, try_command

_PREFIX: Final = "jaxdist"
NETNS_FOLDER: Final = Path("/etc/netns")
"""Folder of what a host has in place of files in /etc, a folder a host."""


def temporary_prefix() -> str:
    """Return a name that is removed by others when this process is gone."""
    return f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"


def remove_with_prefix(prefix: str) -> list[str]:
    """Remove what has names that begin so, and end what runs there.

    Returns:
        The names, of hosts and of their switch.
    """
    found = sorted(
        each for each in existing_namespaces() if each.startswith(f"{prefix}-")
    )
    _remove_namespaces(found)
    return found


def remove_orphans() -> list[str]:
    """Remove the hosts of processes that are gone, and return their names."""
    names = [
        (name, re.match(rf"{_PREFIX}-(\d+)-", name)) for name in existing_namespaces()
    ]
    dead = [name for name, own in names if own and not Path("/proc", own[1]).exists()]
    _remove_namespaces(dead)
    return dead


def write_hosts_file(namespace: str, address: str) -> None:
    """Let a machine's name be the host's own address: there gloo listens."""
    folder = NETNS_FOLDER / namespace
    folder.mkdir(parents=True, exist_ok=True)
    names = f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n"
    (folder / "hosts").write_text(names)


def _list_namespaces() -> list[str]:
    return [
        line.split()[0]
        for line in run_command("ip", "netns", "list").splitlines()
        if line
    ]


def existing_namespaces() -> set[str]:
    """Name all hosts that left a namespace or a file of names."""
    files = (
        (path.name for path in NETNS_FOLDER.iterdir()) if NETNS_FOLDER.exists() else ()
    )
    return {*_list_namespaces(), *files}


def _remove_namespaces(names: Iterable[str]) -> None:
    """Remove hosts; what somebody else has removed in the meantime is no error."""
    names = set(names)
    for name in names & set(_list_namespaces()):
        running = try_command("ip", "netns", "pids", name).stdout.split()
        if running:
            try_command("kill", "-KILL", *running)
        try_command("ip", "netns", "delete", name)
    for name in names:
        shutil.rmtree(NETNS_FOLDER / name, ignore_errors=True)
    for name in names & set(_list_namespaces()):
        run_command("ip", "netns", "delete", name)
