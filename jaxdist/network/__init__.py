"""Step lists on networks whose links are shared: time and contention, no devices."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.network.concurrent import simulate_concurrent as simulate_concurrent
    from jaxdist.network.schedules_by_name import schedule_by_name as schedule_by_name
    from jaxdist.network.simulate import NetworkModel as NetworkModel
    from jaxdist.network.simulate import simulate_collective as simulate_collective
    from jaxdist.network.topologies.registry import make_topology as make_topology

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "NetworkModel": "jaxdist.network.simulate",
        "make_topology": "jaxdist.network.topologies.registry",
        "schedule_by_name": "jaxdist.network.schedules_by_name",
        "simulate_collective": "jaxdist.network.simulate",
        "simulate_concurrent": "jaxdist.network.concurrent",
    },
)
