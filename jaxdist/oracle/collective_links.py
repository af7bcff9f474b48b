"""Crossed: the links that each collective of a plan needs, on a cluster."""

from jaxdist.core.cluster import Cluster
from jaxdist.oracle.link_groups import LinkGroup, link_group
from jaxdist.oracle.step_description import StepDescription


def collective_link_groups(
    case: StepDescription, cluster: Cluster
) -> dict[str, LinkGroup]:
    """Return the group of each set of axes that something moves along.

    Args:
        case: network, layout and traffic.
        cluster: machines, with as many devices as the plan.

    Returns:
        Groups by the names of their axes, `data x spatial_h`.
    """
    rows = [row for ledger in case.ledgers for row in ledger.rows]
    rows += [
        r for ledger in case.ledgers for sync in ledger.outer_syncs for r in sync.rows
    ]
    placed, axes = case.plan.placed, dict.fromkeys(row.axes for row in rows)
    return {" x ".join(names): link_group(cluster, placed, names) for names in axes}
