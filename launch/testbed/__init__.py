"""A testbed of network namespaces: emulated hosts on shaped links."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.launch.testbed.hosts import EmulatedCluster as EmulatedCluster
    from jaxdist.launch.testbed.traffic_counter import TrafficCounter as TrafficCounter
    from jaxdist.launch.testbed.traffic_counter import (
        shard_local_arrays as shard_local_arrays,
    )

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "EmulatedCluster": "jaxdist.launch.testbed.hosts",
        "TrafficCounter": "jaxdist.launch.testbed.traffic_counter",
        "shard_local_arrays": "jaxdist.launch.testbed.traffic_counter",
    },
)
