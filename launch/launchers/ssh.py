"""SSH: a program started over ssh, one process a host."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.network_address import MAX_PORT
from jaxdist.core.text_encoding import read_text
from jaxdist.launch.distributed.coordinator_address import join_address
from jaxdist.launch.distributed.environment import rank_variables
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.launchers.program import check_option_range

COORDINATOR_PORT: Final = 29500
"""Where process 0 listens, unless another port is named."""
_MIN_USER_PORT: Final = 1024
"""The first port that a process without privileges listens at."""
# Without a terminal to ask for a password at, ssh fails instead of waiting for one.
_SSH_OPTIONS: Final = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_HOST: Final = re.compile(
    r"(?:\w[\w.+-]*@)?(?:\w[\w.-]*(?::\d+)?|\[?[0-9a-fA-F:]*:[0-9a-fA-F:.]*(?:%\w+)?\]?)",
    re.ASCII,
)
"""A host's name or address, with a user in front of it or not; MPI takes `:slots`."""
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
        """Return the launch of another attempt, at another port.

        The last one may still be in TIME_WAIT on the host of process 0.
        """
        port = self.port + number
        if port > MAX_PORT:
            span = MAX_PORT + 1 - _MIN_USER_PORT
            port = _MIN_USER_PORT + (port - _MIN_USER_PORT) % span
        return replace(self, port=port)

    def ssh_argv(self, rank: int, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line that starts a process from here."""
        place = rank_variables(
            rank=rank,
            num_processes=len(self.hosts),
            coordinator=join_address(host_name(self.hosts[0]).strip("[]"), self.port),
            devices_per_process=self.devices_per_process,
            planned_processes=self.planned_processes,
        )
        given = {name: environ[name] for name in FORWARDED_VARS if name in environ}
        variables = [f"{name}={text}" for name, text in {**given, **place}.items()]
        guard = sys.executable, "-m", "jaxdist.launch.launchers.ssh_guard"
        # sshd drops most variables (AcceptEnv), so they go on the command line; exec
        # leaves no shell between sshd and the guard that would take its signals.
        words = "exec", "env", *variables, *guard, *self.command
        return self.remote_argv(rank, shlex.join(words))

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
        rows = (self.ssh_argv(rank, environ) for rank in range(len(self.hosts)))
        return "".join(f"{shlex.join(row)}\n" for row in rows)

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
    """Return the processes of a command, one a host.

    Args are those of `SshLaunch`, as they are typed: hosts are `a,b,c` or a file with a
    host a line, and `remote_shell` is one text with options of ssh.

    Raises:
        BadInput: no hosts, hosts named twice, numbers that cannot be, or no words in
            `remote_shell`.
    """
    check_option_range("--port", port, MAX_PORT)
    check_option_range("--devices-per-process", devices_per_process, 1024)
    try:
        shell, said = tuple(shlex.split(remote_shell)), "there is no word"
    except ValueError as error:
        shell, said = (), str(error)
    if not shell:
        raise BadInput(
            "the words of --ssh cannot be told apart",
            rule="--ssh is ssh with its options, in quotes as a shell reads them",
            values=f"--ssh {shlex.quote(remote_shell)}: {said}",
            remedy="--ssh 'ssh -p 2222'",
        )
    return SshLaunch(
        hosts=parse_hosts(hosts),
        command=tuple(command),
        folder=folder,
        port=COORDINATOR_PORT if port is None else port,
        devices_per_process=devices_per_process,
        remote_shell=shell,
    )


def parse_hosts(text: str) -> tuple[str, ...]:
    """Read hosts from a list or a file, where `#` begins a comment.

    >>> parse_hosts("node1, me@node2")
    ('node1', 'me@node2')

    Raises:
        BadInput: there is none, or one is named twice or is no name.
    """
    if re.fullmatch(r"\d+(:\d+)?", text.strip()):
        raise BadInput(
            f"--hosts {text} names no host",
            rule="--hosts is a,b,c or a file with a host a line; -n says how many",
            values=f"--hosts {text}",
            remedy=f"--hosts hosts.txt -n {text.strip()}",
        )
    # `Path.is_file` refuses what is too long for a name, such as a list of 50 hosts.
    is_file = os.path.isfile(text)
    lines = read_text(Path(text)).splitlines() if is_file else text.split(",")
    hosts = tuple(filter(None, (line.partition("#")[0].strip() for line in lines)))
    names = [host_name(host) for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    # One that begins with a dash would be an option of ssh, -oProxyCommand for example,
    # and what a shell reads as more than a word would run: ssh puts user and host into
    # commands of its configuration.
    wrong = [host for host in hosts if not _HOST.fullmatch(host)]
    problems = [f"{name} twice" for name in twice]
    problems += [f"{host!r} is no name" for host in wrong]
    if not hosts or problems:
        raise BadInput(
            "these hosts cannot be used",
            rule="--hosts is a,b,c or a file with a host a line, each named once",
            values=", ".join(problems) or f"no host in {text!r}",
            remedy="--hosts node1,node2",
        )
    return hosts


def host_name(host: str) -> str:
    """Return a host without its user: its name in the network.

    >>> host_name("me@node2")
    'node2'
    """
    return host.rpartition("@")[2]


def check_hosts(launch: SshLaunch) -> None:
    """Check before anything is started that every host can take its process.

    Raises:
        BadInput: naming each host where that failed, and what ssh says.
    """
    check_ssh_installed(launch)
    # The first host also tries to listen where process 0 will.
    code = [_LISTEN_CODE.format(launch.port), *[""] * (len(launch.hosts) - 1)]
    with ThreadPoolExecutor(len(launch.hosts)) as pool:
        errors = pool.map(partial(remote_python_error, launch), count(), code)
    failed = [f"{host}: {why}" for host, why in zip(launch.hosts, errors) if why]
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


def remote_python_error(launch: SshLaunch, rank: int, code: str = "") -> str:
    """Return why a host cannot run a line of Python in the folder; empty: it can."""
    # Without site-packages (-S) Python starts fast, and the answer is the same.
    python = shlex.join(["exec", sys.executable, "-S", "-c", code])
    words = launch.remote_argv(rank, python)
    # Without an input: ssh would read what is typed at this terminal.
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""
