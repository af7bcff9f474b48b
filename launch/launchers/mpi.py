"""MPI: a program started by mpirun of Open MPI."""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
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
    """Several processes of a command, wherever mpirun puts them."""

    command: tuple[str, ...]
    """Words of the command line of each."""
    num_processes: int
    """How many processes."""
    hosts: tuple[str, ...] = ()
    """Where; none leaves that to mpirun."""
    devices_per_process: int | None = None
    """Fake devices of each; None leaves that to the command."""
    mpirun_options: tuple[str, ...] = ()
    """More options of mpirun."""

    def mpirun_argv(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line that starts them.

        Each may use all cores: jax has many threads. It asks Open MPI which process it
        is and where process 0 listens.
        """
        given = {name: environ[name] for name in FORWARDED_VARS if name in environ}
        mine = {"JAXDIST_CLUSTER": "ompi", "PYTHONUNBUFFERED": "1", **given}
        if self.devices_per_process is not None:
            mine["JAX_NUM_CPU_DEVICES"] = str(self.devices_per_process)
        exported = [word for k, text in mine.items() for word in ("-x", f"{k}={text}")]
        where = ("--host", ",".join(self.hosts)) if self.hosts else ()
        how = (
            "--bind-to",
            "none",
            "--tag-output",
            *where,
            *exported,
            *self.mpirun_options,
        )
        return "mpirun", "-n", str(self.num_processes), *how, *self.command

    def shell_text(self, environ: Mapping[str, str]) -> str:
        """Return the same for a shell."""
        return f"{shlex.join(self.mpirun_argv(environ))}\n"


def mpi_launch(
    command: Sequence[str],
    *,
    num_processes: int,
    hosts: str | None = None,
    devices_per_process: int | None = None,
    mpirun_options: Sequence[str] = (),
) -> MpiLaunch:
    """Return the processes that a command would be.

    Args:
        command: words that start each.
        num_processes: how many processes.
        hosts: `a,b,c`, or a file with a host a line; None leaves that to mpirun.
        devices_per_process: fake devices of each; None leaves that to the command.
        mpirun_options: more options of mpirun.

    Raises:
        BadInput: numbers or hosts that cannot be.
    """
    check_option_range("-n", num_processes, _MAX_PROCESSES)
    if devices_per_process is not None:
        check_option_range("--devices-per-process", devices_per_process, 1024)
    return MpiLaunch(
        command=tuple(command),
        num_processes=num_processes,
        hosts=() if hosts is None else parse_hosts(hosts),
        devices_per_process=devices_per_process,
        mpirun_options=tuple(mpirun_options),
    )


def run_mpi(launch: MpiLaunch, environ: Mapping[str, str]) -> int:
    """Run processes under mpirun, which names each in front of its lines.

    Returns:
        0, or the exit code of the first that failed, as mpirun has it.

    Raises:
        BadInput: there is no mpirun here.
    """
    words = launch.mpirun_argv(environ)
    if shutil.which(words[0]) is None:
        raise BadInput(
            "no Open MPI here",
            rule="launch mpi starts processes with mpirun",
            values="mpirun is not on PATH",
            remedy="apt-get install openmpi-bin, or jaxdist launch ssh",
        )
    with exit_on_signals():
        failure = run_and_stream([ProcessSpec(command=words, env=environ)], _print_line)
    return 0 if failure is None else failure.exit_code


def _print_line(rank: int, line: str, error: bool) -> None:
    out = sys.stderr if error else sys.stdout
    out.write(f"{line}\n")
    out.flush()
