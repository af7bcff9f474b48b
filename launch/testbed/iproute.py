"""The commands `ip` and `tc` of this machine, and what it lacks for emulated hosts."""

import os
import shutil
import subprocess
import sys

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
