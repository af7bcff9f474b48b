"""Hosts in a box: network namespaces of this machine on one switch, over shaped links.

Each host has an interface of its own, so a queue and counters of its own. The switch is
a bridge in another namespace, so nothing of this touches the machine's own network.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.joined import checked_count, tasks_for
from jaxdist.launch.links import Counter, bucket, counter
from jaxdist.launch.together import Finished, Task, run_together

_PREFIX: Final = "jaxdist"
_NETWORK: Final = "10.77.0"
_PORT: Final = 29500
FILES: Final = Path("/etc/netns")
"""Folder of what a host has in place of files in /etc, a folder a host."""


class Hosts:
    """Several hosts in one machine, as a context: up inside it, gone after it.

    What a process that was killed left behind is removed when the next one comes up.

    Args:
        count: how many hosts.
        rate: bits a second of each link, both ways: `100mbit`; None is no limit.
        frames: whether processes hand over whole frames, so that counters see every
            header; without it the kernel cuts packets of up to 64 KiB after counting,
            which costs less of the processor.
        name: begins the names of what is made; without one they are this process's,
            and are removed by others when it is gone.

    Raises:
        BadInput: not Linux, not root, no `ip` and `tc`, or values that cannot be.
    """

    def __init__(
        self,
        count: int,
        rate: str | None = None,
        *,
        frames: bool = False,
        name: str | None = None,
    ) -> None:
        self.count = checked_count(count)
        self.rate, self.frames = rate, frames
        self._words = _shaping(rate)
        self.name = name or f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
        check_machine()

    def __enter__(self) -> "Hosts":
        sweep()
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def up(self) -> None:
        """Make the hosts, all or none."""
        try:
            self._make()
        except BaseException:
            self.down()
            raise

    def address(self, rank: int) -> str:
        """Return the address of a host."""
        return f"{_NETWORK}.{rank + 1}"

    def coordinator(self, attempt: int = 0) -> str:
        """Return where process 0 listens: `address:port`, another each attempt."""
        return f"{self.address(0)}:{_PORT + attempt}"

    def run(
        self,
        *commands: Sequence[str],
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> tuple[Finished, ...]:
        """Run one process a host and wait for all.

        Args:
            commands: one for all, or one for each.
            timeout: seconds until all must be done.
            env: variables to add.

        Raises:
            ProcessesFailed: a process failed or was late; all were ended.
        """
        tasks = tasks_for(commands, self.count, self.coordinator(), env or {})
        return run_together(self.inside(tasks), timeout=timeout)

    def inside(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the same tasks, one on each host."""
        return [
            replace(task, command=(*self._inside(rank), *task.command))
            for rank, task in enumerate(tasks)
        ]

    def counters(self) -> tuple[Counter, ...]:
        """Read what each host's interface has sent and received."""
        read = ("cat", "/proc/net/dev")
        return tuple(
            counter(_do(*self._inside(rank), *read), "eth0")
            for rank in range(self.count)
        )

    def shape(self, rate: str | None) -> None:
        """Change the rate of all links.

        Raises:
            BadInput: it is no rate.
        """
        self._words, self.rate = _shaping(rate), rate
        for rank in range(self.count):
            for where, link in (self._host(rank), "eth0"), (self._switch, f"p{rank}"):
                words = ("qdisc", "replace", "dev", link, "root", *self._words)
                _do("tc", "-n", where, *words)

    def down(self) -> None:
        """Remove the hosts and end what runs on them; nothing where they are gone."""
        remove(self.name)

    @property
    def _switch(self) -> str:
        return f"{self.name}-switch"

    def _host(self, rank: int) -> str:
        return f"{self.name}-{rank}"

    def _inside(self, rank: int) -> tuple[str, ...]:
        """Return the words that run a command on a host."""
        return "ip", "netns", "exec", self._host(rank)

    def _make(self) -> None:
        switch = self._switch
        _do("ip", "netns", "add", switch)
        _do("ip", "-n", switch, "link", "add", "name", "switch", "type", "bridge")
        _do("ip", "-n", switch, "link", "set", "dev", "switch", "up")
        for rank in range(self.count):
            self._plug_in(rank)
        self.shape(self.rate)

    def _plug_in(self, rank: int) -> None:
        """Make one host and its cable."""
        host, port, switch = self._host(rank), f"p{rank}", self._switch
        _do("ip", "netns", "add", host)
        _write_names(host, self.address(rank))
        ends = ("type", "veth", "peer", "name", port, "netns", switch)
        _do("ip", "link", "add", "name", "eth0", "netns", host, *ends)
        at = ("ip", "-n", host)
        _do(*at, "link", "set", "dev", "lo", "up")
        _do(*at, "address", "add", f"{self.address(rank)}/24", "dev", "eth0")
        if self.frames:
            _do(*at, "link", "set", "dev", "eth0", "gso_max_segs", "1")
        _do(*at, "link", "set", "dev", "eth0", "up")
        plug = ("link", "set", "dev", port, "master", "switch")
        _do("ip", "-n", switch, *plug, "up")


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


def _shaping(rate: str | None) -> tuple[str, ...]:
    return ("noqueue",) if rate is None else bucket(rate)


def _write_names(host: str, address: str) -> None:
    """Let a machine's name be the host's own address: there gloo listens."""
    folder = FILES / host
    folder.mkdir(parents=True, exist_ok=True)
    names = f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n"
    (folder / "hosts").write_text(names)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _do("ip", "netns", "list").splitlines() if line]


def known() -> set[str]:
    """Name all hosts that left a namespace or a file of names."""
    files = (path.name for path in FILES.iterdir()) if FILES.exists() else ()
    return {*_namespaces(), *files}


def _remove(names: Iterable[str]) -> None:
    """Remove hosts; what somebody else has removed in the meantime is no error."""
    names = set(names)
    for name in names & set(_namespaces()):
        running = _run("ip", "netns", "pids", name).stdout.split()
        if running:
            _run("kill", "-KILL", *running)
        _run("ip", "netns", "delete", name)
    for name in names:
        shutil.rmtree(FILES / name, ignore_errors=True)
    for name in names & set(_namespaces()):
        _do("ip", "netns", "delete", name)


def _do(*words: str) -> str:
    """Run a command of the system and return what it prints.

    Raises:
        BadInput: it fails, with its own words.
    """
    done = _run(*words)
    if done.returncode == 0:
        return done.stdout
    raise BadInput(
        "this machine does not make the hosts",
        rule="root may add network namespaces, veth pairs, a bridge and token buckets",
        values=f"{' '.join(words)}: {done.stderr.strip()}",
        remedy="in a container: docker run --privileged ...",
    )


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


def check_machine() -> None:
    """Refuse what cannot make hosts.

    Raises:
        BadInput: not Linux, not root, or no `ip` and `tc`.
    """
    if sys.platform != "linux":
        raise _refused(f"this is {sys.platform}", "run it on Linux")
    if os.geteuid() != 0:
        raise _refused(
            f"the user is {os.geteuid()}", "the same as root, with sudo -E for example"
        )
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise _refused(f"no {' and no '.join(missing)}", "apt-get install iproute2")


def _refused(values: str, remedy: str) -> BadInput:
    return BadInput(
        "hosts in a box cannot be made here",
        rule="they are network namespaces: Linux, root, and ip and tc of iproute2",
        values=values,
        remedy=[
            remedy,
            "or without shaped links: jaxdist launch local -n 4 -- train digits",
        ],
    )
