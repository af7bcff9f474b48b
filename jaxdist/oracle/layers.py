"""Layers: the seconds of a step that each layer of a case computes on its device."""

from jaxdist.core.cluster import Cluster
from jaxdist.core.measured import Pair
from jaxdist.oracle.case import Case
from jaxdist.oracle.work import Worker, worked_in
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
    places, taken = places_of(case.plan), turns(case.plan, case.microbatches)
    late, found = 1 + cluster.jitter.value, {}
    for stage in range(max(1, len(case.stages))):
        place = places.of_stages[stage][0]
        micro = taken[place].micro
        worker = Worker(
            case=case,
            device=cluster.device,
            ledger=case.ledgers[place],
            microbatches=micro,
        )
        for layer in worked_in(case, stage):
            one = worker.spent(layer)
            found[layer.name] = Pair(
                forward=late * micro * one.forward,
                backward=late * micro * one.backward,
            )
    return found
