"""Launchers: local, SSH, SLURM, Kubernetes, MPI."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.launch.launchers.processes.loopback import Loopback as Loopback

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Loopback": "jaxdist.launch.launchers.processes.loopback",
    },
)
