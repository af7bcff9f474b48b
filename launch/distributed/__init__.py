"""The processes of one run: process group, rendezvous, preemption."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.launch.distributed.jax_processes import initialize as initialize

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "initialize": "jaxdist.launch.distributed.jax_processes",
    },
)
