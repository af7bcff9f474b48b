"""A cluster: devices, links and measured timings of a machine, as plain data."""

from jaxdist.core.cluster.cluster import Cluster

__all__ = ["Cluster"]
