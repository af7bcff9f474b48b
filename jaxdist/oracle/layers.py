"""Layers: the seconds of a step that each layer of a case computes on its device."""

from jaxdist.core.cluster import Cluster
from jaxdist.core.measured import Pair
from jaxdist.oracle.case import Case
from jaxdist.oracle.work import spent_in
from jaxdist.pipeline.places import places_of
from jaxdist.pipeline.planned import turns


def layer_seconds(case: Case, cluster: Cluster) -> dict[str, Pair]:
    """Predict the seconds of each layer in a step, by name.

    Args:
        case: network, layout and traffic.
        cluster: machines.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    late, found = 1 + cluster.jitter.value, {}
    places, taken = places_of(case.plan), turns(case.plan, case.microbatches)
    for stage in range(max(1, len(case.stages))):
        micro = taken[places.of_stages[stage][0]].micro
        for layer, one in spent_in(case, cluster.device, stage):
            found[layer.name] = Pair(
                forward=late * micro * one.forward,
                backward=late * micro * one.backward,
            )
    return found
