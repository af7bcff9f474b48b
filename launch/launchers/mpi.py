"""MPI: a program started by mpirun of Open MPI."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from jaxdist.core.errors import BadInput
from jaxdist.launch.launchers.processes.group import (
    ProcessSpec,
    exit_on_signals,
    run_and_stream,
)
from jaxdist.launch.launchers.program import check_option_range
from jaxdist.launch.launchers.ssh import FORWARDED_VARS, parse_hosts

_MAX_PROCESSES = 100_000


@dataclass(frozen=True, kw_only=True)
class MpiLaunch:
    """Several processes of a command, wherever mpirun puts them.

    Raises:
        BadInput: numbers or hosts that cannot be.
    """

    command: tuple[str, ...]
    """Words of the command line of each."""
    num_processes: int
    """How many processes."""
    hosts: str | None = None
    """`a,b,c`, or a file with a host a line; None leaves that to mpirun."""
    devices_per_process: int | None = None
    """Fake devices of each; None leaves that to the command."""
    mpirun_options: tuple[str, ...] = ()
    """More options of mpirun."""

    def __post_init__(self) -> None:
        check_option_range("-n", self.num_processes, _MAX_PROCESSES)
        check_option_range("--devices-per-process", self.devices_per_process, 1024)
        if self.hosts is not None:
            parse_hosts(self.hosts)

    def mpirun_argv(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line that starts them."""
        given = {name: environ[name] for name in FORWARDED_VARS if name in environ}
        # The variables of Open MPI say which process it is, and where mpirun is.
        # Unbuffered: mpirun reads a pipe, to which Python would write in blocks.
        mine = {"JAXDIST_CLUSTER": "ompi", "PYTHONUNBUFFERED": "1", **given}
        if self.devices_per_process is not None:
            mine["JAX_NUM_CPU_DEVICES"] = str(self.devices_per_process)
        exported = [word for k, text in mine.items() for word in ("-x", f"{k}={text}")]
        hosts = () if self.hosts is None else parse_hosts(self.hosts)
        where = ("--host", ",".join(hosts)) if hosts else ()
        # mpirun would bind a process to a core or socket; jax has threads for all.
        how = "--bind-to", "none", "--tag-output", *where
        words = *how, *exported, *self.mpirun_options, *self.command
        return "mpirun", "-n", str(self.num_processes), *words

    def shell_text(self, environ: Mapping[str, str]) -> str:
        """Return the same for a shell."""
        return f"{shlex.join(self.mpirun_argv(environ))}\n"


def run_mpi(launch: MpiLaunch, environ: Mapping[str, str]) -> int:
    """Run processes under mpirun, which writes the rank in front of each line.

    Returns:
        0, or the exit code of the first that failed, as mpirun has it.

    Raises:
        BadInput: there is no mpirun here.
    """
    if shutil.which("mpirun") is None:
        raise BadInput(
            "no Open MPI here",
            rule="launch mpi starts processes with mpirun",
            values="mpirun is not on PATH",
            remedy="apt-get install openmpi-bin, or jaxdist launch ssh",
        )
    # mpirun is the one child: it starts, tags and ends the ranks itself.
    spec = ProcessSpec(command=launch.mpirun_argv(environ), env=environ)
    with exit_on_signals():
        failure = run_and_stream(
            [spec],
            lambda rank, line, error: print(
                line, file=sys.stderr if error else sys.stdout, flush=True
            ),
        )
    return 0 if failure is None else failure.exit_code
