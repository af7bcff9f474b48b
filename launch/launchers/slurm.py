"""SLURM: a program submitted as a job of several nodes."""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.launchers.processes.restart import MAX_RESTARTS
from jaxdist.launch.launchers.program import check_option_range

SBATCH_SCRIPT: Final = Path(__file__).parent / "scripts" / "slurm.sh"
"""What runs on the first node of the job; readable, and of use by hand."""
_MAX_NODES: Final = 100_000
_MAX_PROCESSES_PER_NODE: Final = 1024


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """A job: so many nodes, each with so many processes of a command.

    Raises:
        BadInput: numbers that cannot be.
    """

    command: tuple[str, ...]
    """Words of the command line of each process."""
    nodes: int
    """How many nodes."""
    processes_per_node: int = 1
    """Processes a node."""
    devices_per_process: int | None = None
    """Fake devices of each; None leaves that to the command."""
    max_requeues: int | None = None
    """How often it is queued again where it ends with 75; None: as the script says."""
    sbatch_options: tuple[str, ...] = ()
    """More options of sbatch."""

    def __post_init__(self) -> None:
        for option, value, most in (
            ("--nodes", self.nodes, _MAX_NODES),
            ("--processes-per-node", self.processes_per_node, _MAX_PROCESSES_PER_NODE),
            ("--devices-per-process", self.devices_per_process, 1024),
            ("--requeues", self.max_requeues, MAX_RESTARTS),
        ):
            check_option_range(option, value, most)

    @property
    def sbatch_argv(self) -> tuple[str, ...]:
        """The command line that submits it."""
        size = f"--nodes={self.nodes}", f"--ntasks-per-node={self.processes_per_node}"
        # sbatch leaves what stands behind the script to the script.
        return "sbatch", *size, *self.sbatch_options, str(SBATCH_SCRIPT), *self.command

    @property
    def env_vars(self) -> dict[str, str]:
        """The variables that it is submitted with, which SLURM passes to its tasks."""
        found = {
            "JAX_NUM_CPU_DEVICES": self.devices_per_process,
            "JAXDIST_REQUEUES": self.max_requeues,
        }
        return {name: f"{text}" for name, text in found.items() if text is not None}

    def shell_text(self) -> str:
        """Return the command line for a shell, and the script that it submits."""
        before = [f"{name}={text}" for name, text in self.env_vars.items()]
        line = shlex.join([*before, *self.sbatch_argv])
        return f"{line}\n\n{SBATCH_SCRIPT.read_text()}"


def submit_slurm_job(job: SlurmJob) -> str:
    """Submit a job, and return what sbatch says.

    Raises:
        BadInput: there is no sbatch here, or it refuses the job.
    """
    if shutil.which("sbatch") is None:
        raise BadInput(
            "no SLURM here",
            rule="launch slurm submits with sbatch",
            values="sbatch is not on PATH",
            remedy="the same with --print, and that on a login node",
        )
    # sbatch exports the environment of the submission to the job (--export=ALL).
    environ = {**os.environ, **job.env_vars}
    done = subprocess.run(
        job.sbatch_argv, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BadInput(
            "SLURM does not take the job",
            rule="sbatch accepts its nodes and options",
            values=done.stderr.strip(),
            remedy="--nodes N, and --sbatch=--partition=NAME and the like",
        )
    return done.stdout
