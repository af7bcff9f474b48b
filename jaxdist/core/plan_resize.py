"""Resizing a plan to fewer processes than it is written for.

4 processes   data 8 x tensor 2
3             data 6 x tensor 2     the same devices a process, and all other axes
2             data 4 x tensor 2

Batch, rate, order and all other axes stay, so the run stays what it is.
"""

import math
from dataclasses import replace

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan


def resize_plan(plan: Plan, num_processes: int, planned_processes: int) -> Plan:
    """Return the plan for fewer processes, with as many devices each.

    Args:
        plan: written for `planned_processes` processes.
        num_processes: how many there are.
        planned_processes: how many there were to be.

    Raises:
        BadInput: the batch axes cannot be divided so.

    >>> from jaxdist.core.plan import MeshShape
    >>> resize_plan(Plan(mesh=MeshShape(data=8, tensor=2)), 3, 4).title
    'data 6 x tensor 2'
    """
    mesh = plan.mesh
    shards, left = divmod(mesh.batch_shards * num_processes, planned_processes)
    if left:
        raise BadInput(
            f"the plan has no layout for {num_processes} of {planned_processes} "
            "processes",
            rule="with fewer processes the axes data and fsdp have a part of their "
            "devices, and the others all",
            values=f"{plan.title}: {num_processes} x {mesh.batch_shards} / "
            f"{planned_processes}",
            remedy="plan.mesh.data="
            f"{planned_processes * max(1, mesh.data // planned_processes)}",
        )
    # Weights keep as many shards as divide, since with fewer a device may lack memory.
    expert = math.gcd(shards, mesh.expert)
    fsdp = math.gcd(shards // expert, mesh.fsdp)
    data = shards // expert // fsdp
    return plan.on(replace(mesh, data=data, fsdp=fsdp, expert=expert))


def check_device_count(plan: Plan, cluster: Cluster) -> None:
    """Refuse a plan that a cluster has too few devices for.

    Raises:
        BadInput: with the numbers.
    """
    if plan.mesh.devices > cluster.devices:
        raise BadInput(
            "the plan needs more devices than the cluster has",
            rule="the product of plan.mesh is at most the devices of the cluster",
            values=f"{plan.title} has {plan.mesh.devices:,}, "
            f"{cluster.name} {cluster.devices:,}",
            remedy="a smaller plan.mesh, or a larger cluster",
        )
