"""Environment variables that make a process one of several, and their reading."""

import os
from collections.abc import Mapping
from typing import Final

from jaxdist.launch.distributed.schedulers import (
    CLUSTER_DETECTION_VAR,
    COORDINATOR_VAR,
    NUM_PROCESSES_VAR,
    RANK_VAR,
    read_integer,
    read_rank_assignment,
)

# How many processes the plan is written for, where there may be fewer.
_PLANNED_PROCESSES_VAR: Final = "JAXDIST_PLANNED"
START_TIMEOUT_VAR: Final = "JAXDIST_START_S"
"""How many seconds processes wait for each other at the start, where not 60."""

# Several processes on one machine, each with a thread for every core, would measure
# how they crowd each other out. One thread each is a host's share of the machine.
SINGLE_THREAD_VARS: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
# TensorFlow's and XLA's logs from warnings on; and lines of Python at once, since a
# process whose output is a pipe would keep 8 KiB of them when it is killed.
_LOG_VARS: Final = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
# XLA's CPU backend has no collectives between processes without gloo.
CPU_BACKEND_VARS: Final = {
    "JAX_PLATFORMS": "cpu",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
}
"""Variables by which jax computes on the CPU alone."""


def process_environment(
    environ: Mapping[str, str], *, rank: int, num_processes: int, coordinator: str
) -> dict[str, str]:
    """Return the environment of one of several processes on the CPU.

    Each has one thread and one device. Settings of jax under which this process runs
    are left out: they say how many devices it has, for example.

    Args:
        environ: the environment as it is.
        rank: which process.
        num_processes: how many there are.
        coordinator: `address:port` at which process 0 listens.
    """
    kept = {name: text for name, text in environ.items() if not name.startswith("JAX_")}
    mine = rank_variables(
        rank=rank,
        num_processes=num_processes,
        coordinator=coordinator,
        devices_per_process=1,
    )
    return {**without_proxies(kept), **CPU_BACKEND_VARS, **SINGLE_THREAD_VARS, **mine}


def without_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without proxies.

    gRPC, through which processes find each other, would go through them.

    >>> without_proxies({"HOME": "/me", "http_proxy": "there"})
    {'HOME': '/me'}
    """
    return {k: text for k, text in environ.items() if not k.lower().endswith("_proxy")}


def rank_variables(
    *,
    rank: int,
    num_processes: int,
    coordinator: str,
    devices_per_process: int | None = None,
    planned_processes: int | None = None,
) -> dict[str, str]:
    """Return the variables that make a process one of several, on any device.

    Args:
        rank: which process.
        num_processes: how many there are.
        coordinator: `address:port` at which process 0 listens.
        devices_per_process: fake devices of the process; None leaves them to its
            command.
        planned_processes: how many the plan is written for; None: as many as there are.
    """
    found = {
        "JAX_NUM_CPU_DEVICES": devices_per_process,
        _PLANNED_PROCESSES_VAR: planned_processes,
        **_LOG_VARS,
        RANK_VAR: rank,
        NUM_PROCESSES_VAR: num_processes,
        COORDINATOR_VAR: coordinator,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def is_multi_process(environ: Mapping[str, str]) -> bool:
    """Tell whether a process with this environment is one of several."""
    # Any of them: a process that has lost its rank is not to run alone, beside others.
    names = RANK_VAR, NUM_PROCESSES_VAR, COORDINATOR_VAR, CLUSTER_DETECTION_VAR
    return any(name in environ for name in names)


def planned_process_count(environ: Mapping[str, str], num_processes: int) -> int:
    """Return for how many processes the plan is written, where so many run.

    >>> planned_process_count({"JAXDIST_PLANNED": "4"}, 3), planned_process_count({}, 3)
    (4, 3)
    """
    if _PLANNED_PROCESSES_VAR not in environ:
        return num_processes
    what = "how many processes the plan is written for"
    return read_integer(environ, _PLANNED_PROCESSES_VAR, 1, 1_000_000, what)


def rank_assignment() -> tuple[int, int, str]:
    """Return (rank, processes, address of the coordinator) of this process.

    Raises:
        BadInput: this process was not started as one of several, or a variable that
            says so cannot be.
    """
    mine = read_rank_assignment(os.environ)
    return mine.rank, mine.num_processes, mine.coordinator
