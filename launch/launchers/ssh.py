"""Ssh: a program started over ssh, one process a host."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.environment import rank_variables
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.launchers.program import check_option_range

COORDINATOR_PORT: Final = 29500
"""Where process 0 listens, unless another port is named."""
_SSH_OPTIONS: Final = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_LISTEN_CODE: Final = "import socket; socket.create_server(('', {}))"
FORWARDED_VARS: Final = ("PYTHONPATH", "VIRTUAL_ENV")
"""Variables of this process that the others need to find the same packages."""


@dataclass(frozen=True, kw_only=True)
class SshLaunch:
    """One process a host of a command."""

    hosts: tuple[str, ...]
    """`name` or `user@name`; process 0 is on the first."""
    command: tuple[str, ...]
    """Words of the command line of each."""
    folder: Path
    """Where it runs, which is there on each host."""
    port: int = COORDINATOR_PORT
    """Where process 0 listens."""
    devices_per_process: int | None = None
    """Fake devices of each; None leaves that to the command."""
    remote_shell: tuple[str, ...] = ("ssh",)
    """Words that begin a remote command line."""
    planned_processes: int | None = None
    """How many processes the plan is written for; None: as many as hosts."""

    def for_attempt(self, number: int) -> "SshLaunch":
        """Return the same at another port: that of before may not be free yet."""
        return replace(self, port=self.port + number)

    def ssh_argv(self, rank: int, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line that starts a process from here."""
        place = rank_variables(
            rank=rank,
            num_processes=len(self.hosts),
            coordinator=f"{host_name(self.hosts[0])}:{self.port}",
            devices_per_process=self.devices_per_process,
            planned_processes=self.planned_processes,
        )
        given = {name: environ[name] for name in FORWARDED_VARS if name in environ}
        variables = [f"{name}={text}" for name, text in {**given, **place}.items()]
        held = sys.executable, "-m", "jaxdist.launch.launchers.ssh_guard", *self.command
        return self.remote_argv(rank, shlex.join(["exec", "env", *variables, *held]))

    def process_specs(self, environ: Mapping[str, str]) -> list[ProcessSpec]:
        """Return what is started here, by rank."""
        return [
            ProcessSpec(
                command=self.ssh_argv(rank, environ), env=environ, ends_with_stdin=True
            )
            for rank in range(len(self.hosts))
        ]

    def shell_text(self, environ: Mapping[str, str]) -> str:
        """Return the same as lines for a shell."""
        ranks = range(len(self.hosts))
        return "".join(
            f"{shlex.join(self.ssh_argv(rank, environ))}\n" for rank in ranks
        )

    def remote_argv(self, rank: int, command: str) -> tuple[str, ...]:
        """Return the words that run a command line on a host, in the folder."""
        line = f"cd {shlex.quote(str(self.folder))} && {command}"
        return *self.remote_shell, *_SSH_OPTIONS, self.hosts[rank], line


def ssh_launch(
    command: Sequence[str],
    hosts: str,
    *,
    folder: Path,
    port: int | None = None,
    devices_per_process: int | None = None,
    remote_shell: str = "ssh",
) -> SshLaunch:
    """Return the processes that a command would be.

    Args:
        command: words that start it.
        hosts: `a,b,c`, or a file with a host a line.
        folder: where it runs on each host.
        port: where process 0 listens.
        devices_per_process: fake devices of each; None leaves that to the command.
        remote_shell: words that begin a remote command line, options of ssh among them.

    Raises:
        BadInput: no hosts, hosts named twice, or numbers that cannot be.
    """
    check_option_range("--port", COORDINATOR_PORT if port is None else port, 65_535)
    if devices_per_process is not None:
        check_option_range("--devices-per-process", devices_per_process, 1024)
    return SshLaunch(
        hosts=parse_hosts(hosts),
        command=tuple(command),
        folder=folder,
        port=COORDINATOR_PORT if port is None else port,
        devices_per_process=devices_per_process,
        remote_shell=tuple(shlex.split(remote_shell)),
    )


def parse_hosts(text: str) -> tuple[str, ...]:
    """Read hosts of a list or of a file, where `#` begins a remark.

    >>> parse_hosts("node1, me@node2")
    ('node1', 'me@node2')

    Raises:
        BadInput: none, one that is named twice, or one that is no name.
    """
    if re.fullmatch(r"\d+(:\d+)?", text.strip()):
        raise BadInput(
            f"--hosts {text} names no host",
            rule="--hosts is a,b,c or a file with a host a line; -n says how many",
            values=f"--hosts {text}",
            remedy=f"--hosts hosts.txt -n {text.strip()}",
        )
    path = Path(text)
    lines = path.read_text().splitlines() if path.is_file() else text.split(",")
    hosts = tuple(filter(None, (line.partition("#")[0].strip() for line in lines)))
    names = [host_name(host) for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong = [host for host in hosts if host.startswith("-") or len(host.split()) > 1]
    if not hosts or twice or wrong:
        raise BadInput(
            "these hosts cannot be used",
            rule="--hosts is a,b,c or a file with a host a line, each named once",
            values=", ".join(
                [
                    *(f"{name} twice" for name in twice),
                    *(f"{host!r} is no name" for host in wrong),
                ]
            )
            or f"no host in {text!r}",
            remedy="--hosts node1,node2",
        )
    return hosts


def host_name(host: str) -> str:
    """Return a host without its user: what others call it.

    >>> host_name("me@node2")
    'node2'
    """
    return host.rpartition("@")[2]


def check_hosts(launch: SshLaunch) -> None:
    """Start nothing yet, on every host: it is reached, and has folder and Python.

    Raises:
        BadInput: naming each host where that failed, and what ssh says.
    """
    check_ssh_installed(launch)
    with ThreadPoolExecutor(len(launch.hosts)) as pool:
        said = list(
            pool.map(lambda rank: _launch_error(launch, rank), range(len(launch.hosts)))
        )
    failed = [f"{host}: {why}" for host, why in zip(launch.hosts, said) if why]
    if failed:
        raise BadInput(
            "not every host can take its process",
            rule="each host is reached without a password, has this folder and this "
            "Python, and the first a free port",
            values="; ".join(failed),
            remedy=f"ssh {launch.hosts[0]}, --port N, or a folder that all hosts share",
        )


def check_ssh_installed(launch: SshLaunch) -> None:
    """Refuse a machine without ssh.

    Raises:
        BadInput: naming the command that is not there.
    """
    if shutil.which(launch.remote_shell[0]) is None:
        raise BadInput(
            "no ssh here",
            rule="launch ssh starts processes with ssh",
            values=f"{launch.remote_shell[0]} is not on PATH",
            remedy="apt-get install openssh-client",
        )


def _launch_error(launch: SshLaunch, rank: int) -> str:
    """Return why a host cannot take its process; nothing where it can."""
    return remote_python_error(
        launch, rank, _LISTEN_CODE.format(launch.port) if rank == 0 else ""
    )


def remote_python_error(launch: SshLaunch, rank: int, code: str = "") -> str:
    """Return why a host cannot run a line of Python in the folder; nothing: it can."""
    words = launch.remote_argv(
        rank, shlex.join(["exec", sys.executable, "-S", "-c", code])
    )
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""
