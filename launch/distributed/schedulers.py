"""Rank assignment of a process: from our own variables, or from what started it.

Each scheduler says in variables of its own which process of how many this is. Where
process 0 listens most of them do not say, so it is derived from what all processes of a
job have alike: its list of hosts and its number.
"""

import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.network_address import MAX_PORT, split_address

RANK_VAR: Final = "JAXDIST_RANK"
"""Rank of this process."""
NUM_PROCESSES_VAR: Final = "JAXDIST_HOSTS"
"""How many processes there are."""
COORDINATOR_VAR: Final = "JAXDIST_COORDINATOR"
"""`address:port` at which process 0 listens."""
CLUSTER_DETECTION_VAR: Final = "JAXDIST_CLUSTER"
"""Scheduler whose variables have the rank of this process, a key of `SCHEDULERS`."""
# jax's own variable, which overrides the port of schedulers.
_PORT_VAR: Final = "JAX_COORDINATOR_PORT"
_MAX_PROCESSES: Final = 1_000_000
_NUM_JOB_PORTS: Final = 2**12
# No job has more hosts than that; a list in short form can stand for any number.
_MAX_HOSTS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class RankAssignment:
    """Which process of how many this is, and where process 0 listens."""

    rank: int
    """Which process, from 0."""
    num_processes: int
    """How many there are."""
    coordinator: str
    """`address:port` of process 0, IPv6 in brackets; empty for a process alone."""
    local_rank: int | None = None
    """Which of the processes on this host; None: the only one, with all devices."""


def read_rank_assignment(environ: Mapping[str, str]) -> RankAssignment:
    """Return the rank assignment that an environment holds.

    Raises:
        BadInput: a variable is missing or cannot be, naming it; or there is none.
    """
    scheduler = environ.get(CLUSTER_DETECTION_VAR, "")
    if not scheduler:
        return _read_own(environ)
    if scheduler not in SCHEDULERS:
        near = did_you_mean(scheduler, SCHEDULERS)
        raise _bad_variable(
            environ,
            CLUSTER_DETECTION_VAR,
            f"is one of {', '.join(SCHEDULERS)}",
            f"{CLUSTER_DETECTION_VAR}={near or 'slurm'}, or without a scheduler "
            f"{RANK_VAR}, {NUM_PROCESSES_VAR} and {COORDINATOR_VAR}",
        )
    return SCHEDULERS[scheduler](environ)


def expand_node_list(text: str) -> list[str]:
    """Return the hosts of a list in SLURM's short form, in its order.

    Raises:
        ValueError: it is no such list.

    >>> expand_node_list("rack[1-2]n[08-09],login")
    ['rack1n08', 'rack1n09', 'rack2n08', 'rack2n09', 'login']
    """
    hosts: list[str] = []
    # A comma separates hosts outside of brackets, and ranges inside.
    for entry in re.split(r",(?![^[]*\])", text.strip()):
        names = [""]
        for part in re.split(r"(\[[^][]*\])", entry):
            ends = _expand_ranges(part[1:-1]) if part[:1] == "[" else [part]
            if len(names) * len(ends) + len(hosts) > _MAX_HOSTS:
                raise ValueError(f"more than {_MAX_HOSTS} hosts")
            names = [name + end for name in names for end in ends]
        hosts += names
    if not all(re.fullmatch(r"[^][,\s]+", host) for host in hosts):
        raise ValueError("a host has no name, or a bracket no partner")
    return hosts


def _expand_ranges(text: str) -> list[str]:
    found: list[str] = []
    for piece in text.split(","):
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", piece)
        if ends is None:
            raise ValueError(f"{piece!r} is no range of numbers")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or last - first >= _MAX_HOSTS:
            raise ValueError(f"{piece!r} is no range of numbers")
        # Leading zeros are part of the names: 001 to 010.
        found += [f"{n:0{len(ends[1])}}" for n in range(first, last + 1)]
    return found


def _read_own(environ: Mapping[str, str]) -> RankAssignment:
    """Read the three variables of ours."""
    if RANK_VAR not in environ:
        raise _bad_variable(
            environ,
            RANK_VAR,
            "is a rank, counted from 0; launchers set it, for several processes",
            "jaxdist launch local -n 2 -- train digits, or none of the variables "
            f"{RANK_VAR}, {NUM_PROCESSES_VAR}, {COORDINATOR_VAR}",
        )
    count = read_integer(
        environ, NUM_PROCESSES_VAR, 1, _MAX_PROCESSES, "how many there are"
    )
    rank = _rank(environ, RANK_VAR, count)
    alone = environ.get(COORDINATOR_VAR, "")
    address = alone if count == 1 else _own_coordinator(environ)
    return RankAssignment(rank=rank, num_processes=count, coordinator=address)


def _own_coordinator(environ: Mapping[str, str]) -> str:
    if split_address(environ.get(COORDINATOR_VAR, "")) is None:
        raise _bad_variable(
            environ,
            COORDINATOR_VAR,
            f"is the address of process 0 with a port from 1 to {MAX_PORT}, the same "
            "in every process; IPv6 stands in brackets",
            f"{COORDINATOR_VAR}=node1:29500, or [fe80::1]:29500",
        )
    return environ[COORDINATOR_VAR]


def _read_slurm(environ: Mapping[str, str]) -> RankAssignment:
    """Read what srun gives each task; sbatch alone starts one process of its job."""
    remedy = "start it by srun in the script of the job, or by jaxdist launch slurm"
    job = read_integer(environ, "SLURM_JOB_ID", 0, 2**63, "the job's number", remedy)
    in_step = bool(environ.get("SLURM_STEP_NODELIST"))
    total = "SLURM_NTASKS"
    # A step may have fewer tasks than its job.
    if in_step and environ.get("SLURM_STEP_NUM_TASKS"):
        total = "SLURM_STEP_NUM_TASKS"
    if not in_step:
        # The script of a job runs once, on its first node, whatever was asked for.
        for name in (total, "SLURM_JOB_NUM_NODES"):
            if environ.get(name, "1") != "1":
                raise BadInput(
                    "the script of a SLURM job is one process",
                    rule="srun starts the tasks of a job; sbatch starts its script",
                    values=f"{name}={environ[name]}, SLURM_STEP_NODELIST is not set",
                    remedy=remedy,
                )
        return RankAssignment(rank=0, num_processes=1, coordinator="")
    count = read_integer(
        environ, total, 1, _MAX_PROCESSES, "how many there are", remedy
    )
    rank = _rank(environ, "SLURM_PROCID", count, remedy)
    local = read_integer(
        environ, "SLURM_LOCALID", 0, count - 1, "a rank on the node", remedy
    )
    try:
        first = expand_node_list(environ["SLURM_STEP_NODELIST"])[0]
    except ValueError as error:
        raise _bad_variable(
            environ,
            "SLURM_STEP_NODELIST",
            f"lists hosts as n1,rack[1-2]n[1-4] ({error})",
            f"{COORDINATOR_VAR} with the other two variables of ours, in place of "
            f"{CLUSTER_DETECTION_VAR}",
        ) from error
    return _assigned(environ, rank, count, local, first, job)


def _read_open_mpi(environ: Mapping[str, str]) -> RankAssignment:
    """Read what mpirun of Open MPI 4 (ORTE) or 5 (PRRTE) gives each process."""
    remedy = "start it by mpirun of Open MPI, or by jaxdist launch mpi"
    world = "OMPI_COMM_WORLD_"
    count = read_integer(
        environ, f"{world}SIZE", 1, _MAX_PROCESSES, "how many there are", remedy
    )
    rank = _rank(environ, f"{world}RANK", count, remedy)
    local = read_integer(
        environ, f"{world}LOCAL_RANK", 0, count - 1, "a rank on the host", remedy
    )
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    # 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911
    # 1314521088.0;tcp6://[fe80::b9b:ac5d,2620:10d:c083::2]:43370
    found = re.match(r"([0-9]+)\..*?(?:tcp://([^,:]+)|tcp6://\[([^],]+))", uri)
    if found is not None:
        # The number of a job is a multiple of 2^12.
        job = int(found[1]) // 2**12
        return _assigned(environ, rank, count, local, found[2] or found[3], job)
    # Open MPI 5 has the host of mpirun in the name of the job: prterun-node1-4711@1
    space = environ.get("PMIX_NAMESPACE", "")
    named = re.fullmatch(r"(?:prterun|prte)-(.+)-([0-9]+)@[0-9]+", space)
    # A number that all processes share, for the port: `hash` differs between them.
    job, host = zlib.crc32(space.encode()), named[1] if named else ""
    # All are on this host, which loopback reaches whatever its name leads to.
    if environ.get(f"{world}LOCAL_SIZE") == str(count) and space:
        host = "127.0.0.1"
    if not host and count > 1 and not environ.get(COORDINATOR_VAR):
        raise BadInput(
            "Open MPI does not say where process 0 is",
            rule="OMPI_MCA_orte_hnp_uri (Open MPI 4) or PMIX_NAMESPACE (5) names the "
            "host of mpirun",
            values=f"{_shown(environ, 'OMPI_MCA_orte_hnp_uri')}, "
            f"{_shown(environ, 'PMIX_NAMESPACE')}",
            remedy=f"mpirun -x {COORDINATOR_VAR}=node1:29500",
        )
    return _assigned(environ, rank, count, local, host, job)


def _read_mpich(environ: Mapping[str, str]) -> RankAssignment:
    """Read what Hydra, the mpiexec of MPICH and its kin, gives each process."""
    remedy = "start it by mpiexec of MPICH"
    count = read_integer(
        environ, "PMI_SIZE", 1, _MAX_PROCESSES, "how many there are", remedy
    )
    rank = _rank(environ, "PMI_RANK", count, remedy)
    local = None
    if environ.get("MPI_LOCALRANKID"):
        local = read_integer(
            environ, "MPI_LOCALRANKID", 0, count - 1, "a rank on the host", remedy
        )
    host, job = _batch_job(environ)
    if environ.get("MPI_LOCALNRANKS") == str(count):
        host = "127.0.0.1"
        # A number that the ranks of this host share, where no batch job around them has
        # one.
        job = _hydra_process() if job is None else job
    if (not host or job is None) and count > 1 and not environ.get(COORDINATOR_VAR):
        raise BadInput(
            "MPICH does not say where process 0 is",
            rule="its host is the first of PBS_NODEFILE or SLURM_JOB_NODELIST, or "
            f"{COORDINATOR_VAR} names it",
            values=f"{_shown(environ, 'PBS_NODEFILE')}, "
            f"{_shown(environ, 'SLURM_JOB_NODELIST')}",
            remedy=f"mpiexec -genv {COORDINATOR_VAR} node1:29500",
        )
    return _assigned(environ, rank, count, local, host, job or 0)


def _read_pbs(environ: Mapping[str, str]) -> RankAssignment:
    """Read what mpiexec gives a process of a PBS job, or pbsdsh on each host."""
    # mpiexec says which process this is; the job itself has only its hosts.
    if environ.get("OMPI_COMM_WORLD_RANK"):
        return _read_open_mpi(environ)
    if environ.get("PMI_RANK"):
        return _read_mpich(environ)
    remedy = "start it by mpiexec, or by pbsdsh -u, in the script of the job"
    if not environ.get("PBS_JOBID"):
        raise _bad_variable(environ, "PBS_JOBID", "is the job's number", remedy)
    host, job = _batch_job(environ)
    hosts = _pbs_hosts(environ)
    if not hosts:
        raise _bad_variable(
            environ, "PBS_NODEFILE", "is a file with the hosts of the job", remedy
        )
    if len(hosts) == 1:
        return RankAssignment(rank=0, num_processes=1, coordinator="")
    # The script of a job is task 1 of its first node, and so is nothing of pbsdsh.
    rank = _rank(environ, "PBS_NODENUM", len(hosts), remedy)
    if environ.get("PBS_TASKNUM", "1") == "1":
        raise BadInput(
            "the script of a PBS job is one process",
            rule="mpiexec or pbsdsh starts one on each host of the job",
            values=f"{len(hosts)} hosts, {_shown(environ, 'PBS_TASKNUM')}",
            remedy=remedy,
        )
    return _assigned(environ, rank, len(hosts), None, host, job or 0)


def _read_jobset(environ: Mapping[str, str]) -> RankAssignment:
    """Read the number that Kubernetes gives each pod of an indexed job."""
    remedy = "completionMode: Indexed, or the manifest of jaxdist launch k8s --print"
    count = read_integer(
        environ, NUM_PROCESSES_VAR, 1, _MAX_PROCESSES, "how many pods there are", remedy
    )
    rank = _rank(environ, "JOB_COMPLETION_INDEX", count, remedy)
    address = "" if count == 1 else _own_coordinator(environ)
    return RankAssignment(rank=rank, num_processes=count, coordinator=address)


SCHEDULERS: Final[Mapping[str, Callable[[Mapping[str, str]], RankAssignment]]] = {
    "slurm": _read_slurm,
    "ompi": _read_open_mpi,
    "mpich": _read_mpich,
    "pbs": _read_pbs,
    "jobset": _read_jobset,
}
"""Values of `JAXDIST_CLUSTER`, and what reads the rank of a process there."""


def _assigned(
    environ: Mapping[str, str],
    rank: int,
    count: int,
    local_rank: int | None,
    host: str,
    job: int,
) -> RankAssignment:
    """Return the assignment of a process whose job has a number."""
    address = ""
    if count > 1 and environ.get(COORDINATOR_VAR):
        address = _own_coordinator(environ)
    elif count > 1:
        # Of the ports that no service has, one that few jobs of a host share.
        port = job % _NUM_JOB_PORTS + MAX_PORT + 1 - _NUM_JOB_PORTS
        if environ.get(_PORT_VAR):
            port = read_integer(environ, _PORT_VAR, 1, MAX_PORT, "a port")
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return RankAssignment(
        rank=rank, num_processes=count, coordinator=address, local_rank=local_rank
    )


def _batch_job(environ: Mapping[str, str]) -> tuple[str, int | None]:
    """Return the first host and the number of the batch job around a process."""
    if hosts := _pbs_hosts(environ):
        return hosts[0], zlib.crc32(environ.get("PBS_JOBID", "").encode())
    nodes, job = environ.get("SLURM_JOB_NODELIST", ""), environ.get("SLURM_JOB_ID", "")
    try:
        return expand_node_list(nodes)[0], int(job)
    except ValueError:
        return "", None


def _pbs_hosts(environ: Mapping[str, str]) -> list[str]:
    """Return the hosts of a PBS job, each once, in order."""
    name = environ.get("PBS_NODEFILE", "")
    try:
        lines = Path(name).read_text().split() if name else []
    except (OSError, ValueError):
        return []
    return list(dict.fromkeys(lines))


def _hydra_process() -> int | None:
    """Return the number of the Hydra process that the ranks of a host descend from."""
    import psutil

    for parent in psutil.Process(os.getpid()).parents():
        if parent.name().startswith("hydra"):
            return parent.pid
    return None


def _rank(environ: Mapping[str, str], name: str, count: int, remedy: str = "") -> int:
    what = f"a rank of {count}, counted from 0"
    return read_integer(environ, name, 0, count - 1, what, remedy)


def read_integer(
    environ: Mapping[str, str],
    name: str,
    least: int,
    most: int,
    what: str,
    remedy: str = "",
) -> int:
    """Return the whole number of a variable.

    Args:
        environ: the environment.
        name: the variable.
        least: the least that it can be.
        most: the most.
        what: what it says, behind `NAME is`.
        remedy: what to type; empty: the least value.

    Raises:
        BadInput: it is not set, no number, or out of range.
    """
    text = environ.get(name, "").strip()
    # int() takes signs, underscores and digits of other scripts as well.
    value = int(text) if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) else -1
    if not least <= value <= most:
        raise _bad_variable(
            environ,
            name,
            f"is {what}: a whole number from {least} to {most}",
            remedy or f"{name}={least}",
        )
    return value


def _bad_variable(
    environ: Mapping[str, str], name: str, rule: str, remedy: str
) -> BadInput:
    return BadInput(
        "this process does not know which one of several it is",
        rule=f"{name} {rule}",
        values=_shown(environ, name),
        remedy=remedy,
    )


def _shown(environ: Mapping[str, str], name: str) -> str:
    return f"{name}={environ[name]!r}" if name in environ else f"{name} is not set"
