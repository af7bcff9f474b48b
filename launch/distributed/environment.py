"""Placed: which of several processes this one is, as its environment says it."""

import os
import sys
from collections.abc import Mapping
from typing import Final

from jaxdist.core.errors import BadInput

RANK: Final = "JAXDIST_RANK"
"""Says which process this is."""
_HOSTS: Final = "JAXDIST_HOSTS"
_COORDINATOR: Final = "JAXDIST_COORDINATOR"
_PLANNED: Final = "JAXDIST_PLANNED"
"""Says how many processes the plan is written for, where there may be fewer."""
CLUSTER: Final = "JAXDIST_CLUSTER"
"""Says which scheduler jax asks for the place of this process: `slurm`."""

START: Final = "JAXDIST_START_S"
"""Says how many seconds processes wait for each other, where not 60."""

# A host of a testbed has one thread, as its share of this machine's processors.
ONE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
_QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
ON_PROCESSOR: Final = {
    "JAX_PLATFORMS": "cpu",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
}
"""Variables by which jax computes on the processor alone."""


def environment(
    environ: Mapping[str, str], *, rank: int, count: int, coordinator: str
) -> dict[str, str]:
    """Return the environment of one of several joined processes.

    Settings of jax that this process runs under are its own affair, so they are left
    out; and a process has one thread and one device.

    Args:
        environ: the environment as it is.
        rank: which process.
        count: how many there are.
        coordinator: `address:port` at which process 0 listens.
    """
    kept = {name: text for name, text in environ.items() if not name.startswith("JAX_")}
    mine = place_words(rank=rank, count=count, coordinator=coordinator, devices=1)
    return {**direct(kept), **ON_PROCESSOR, **ONE_THREAD, **mine}


def direct(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without proxies.

    They would stand between processes that speak to each other directly.

    >>> direct({"HOME": "/me", "http_proxy": "there"})
    {'HOME': '/me'}
    """
    return {k: text for k, text in environ.items() if not k.lower().endswith("_proxy")}


def place_words(
    *,
    rank: int,
    count: int,
    coordinator: str,
    devices: int | None = None,
    planned: int | None = None,
) -> dict[str, str]:
    """Return the variables that make a process one of several, on any device.

    Args:
        rank: which process.
        count: how many there are.
        coordinator: `address:port` at which process 0 listens.
        devices: fake devices of the process; None leaves them to its command.
        planned: how many the plan is written for; None: as many as there are.
    """
    each = {} if devices is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    each |= {} if planned is None else {_PLANNED: str(planned)}
    mine = {RANK: str(rank), _HOSTS: str(count), _COORDINATOR: coordinator}
    return {**each, **_QUIET, **mine}


def was_placed(environ: Mapping[str, str]) -> bool:
    """Tell whether a process with this environment is one of several."""
    return RANK in environ or CLUSTER in environ


def planned(environ: Mapping[str, str], count: int) -> int:
    """Return for how many processes the plan is written.

    Args:
        environ: the environment of one of them.
        count: how many there are.

    >>> planned({"JAXDIST_PLANNED": "4"}, 3), planned({}, 3)
    (4, 3)
    """
    return int(environ.get(_PLANNED, count))


def is_launched(environ: Mapping[str, str]) -> bool:
    """Tell whether a launcher of ours started this process, and reads its lines."""
    return RANK in environ


def was_planned(environ: Mapping[str, str]) -> bool:
    """Tell whether a process with this environment may be one of fewer."""
    return _PLANNED in environ


def place() -> tuple[int, int, str]:
    """Return (rank, processes, address of the coordinator) of this process.

    Raises:
        BadInput: nobody started this process as one of several.
    """
    try:
        rank, count = int(os.environ[RANK]), int(os.environ[_HOSTS])
        return rank, count, os.environ[_COORDINATOR]
    except KeyError as error:
        raise BadInput(
            "this process is not one of several",
            rule="joined processes are started by a testbed or on loopback",
            values=f"{error.args[0]} is not set",
            remedy=f"Loopback(2).run([{sys.executable!r}, {sys.argv[0]!r}])",
        ) from error
