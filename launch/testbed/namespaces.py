"""Network namespaces of emulated hosts, and the `ip` and `tc` commands for them."""

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput


def run_command(*argv: str) -> str:
    """Run a command of the system and return what it prints.

    Raises:
        BadInput: it fails, with its error message.
    """
    done = try_command(*argv)
    if done.returncode == 0:
        return done.stdout
    raise BadInput(
        "this machine does not make the hosts",
        rule="root may add network namespaces, veth pairs, a bridge and token buckets",
        values=f"{' '.join(argv)}: {done.stderr.strip()}",
        remedy="in a container: docker run --privileged ...",
    )


def try_command(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the system that may fail."""
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def check_netns_support() -> None:
    """Refuse a machine that cannot make hosts.

    Raises:
        BadInput: not Linux, not root, or no `ip` and `tc`.
    """
    # `ip` makes namespaces and links, `tc` their queues.
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if sys.platform != "linux":
        values, remedy = f"this is {sys.platform}", "run it on Linux"
    elif os.geteuid() != 0:
        values = f"the user is {os.geteuid()}"
        remedy = "the same as root, with sudo -E for example"
    elif missing:
        values, remedy = f"no {' and no '.join(missing)}", "apt-get install iproute2"
    else:
        return
    raise BadInput(
        "hosts in a box cannot be made here",
        rule="they are network namespaces: Linux, root, and ip and tc of iproute2",
        values=values,
        remedy=[
            remedy,
            "or without shaped links: jaxdist launch local -n 4 -- train digits",
        ],
    )


def check_netem_support(namespace: str) -> None:
    """Refuse delays where the kernel cannot make them.

    Args:
        namespace: name of a network namespace that is made to try one, and removed.

    Raises:
        BadInput: the kernel has no `netem`.
    """
    # Only trying tells: netem may be built in, a module, or left out of the kernel.
    run_command("ip", "netns", "add", namespace)
    try:
        words = ("qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        tried = try_command("tc", "-n", namespace, *words)
    finally:
        try_command("ip", "netns", "delete", namespace)
    if tried.returncode:
        raise BadInput(
            "this kernel delays no packets",
            rule="--delay needs the queue netem: CONFIG_NET_SCH_NETEM of the kernel",
            values=f"tc qdisc add dev lo root netem: {tried.stderr.strip()}",
            remedy=["modprobe sch_netem", "or the same without --delay"],
        )


_PREFIX: Final = "jaxdist"
NETNS_FOLDER: Final = Path("/etc/netns")
"""`ip netns exec` mounts the files of a namespace's folder here over those in /etc."""
NAMESPACE_FILES: Final = ("hosts", "about.json")
"""Files of a host, and of a testbed that stays up."""


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
        # Only the files that a testbed writes there; the folder stays while it has
        # others.
        with suppress(OSError):
            for file in NAMESPACE_FILES:
                (NETNS_FOLDER / name / file).unlink(missing_ok=True)
            (NETNS_FOLDER / name).rmdir()
    # What is still there could not be deleted: the second try says why.
    for name in names & set(_list_namespaces()):
        run_command("ip", "netns", "delete", name)
