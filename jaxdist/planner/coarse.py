"""Coarse: a first estimate of a layout, from the totals of a profile alone.

    compute   FLOPs / (devices peak e(FLOPs of a layer on a device)), times the ticks
              of a pipeline over those with work: (m + P - 1) / m
    sums      gradients over the devices that have the same parameters; with fsdp three
              passes over the parameters; with tensor four sums of what blocks hand on
    halos     edge rows of what the layers make, twice

It orders layouts before they are described, which takes a thousand times as long. What
it leaves out of the best so many is not looked at: that is the bound of the search.
"""

import math

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import Plan
from jaxdist.core.profile import Profile
from jaxdist.oracle.groups import group_of
from jaxdist.oracle.prices import seconds


def estimate(
    profile: Profile, plan: Plan, cluster: Cluster, microbatches: int, dtype: str
) -> float:
    """Return seconds a step, to order layouts by.

    Raises:
        BadInput: the cluster is too small, or has no speed for the dtype.
    """
    mesh, device = plan.mesh, cluster.device
    layers = max(1, sum(layer.flops > 0 for layer in profile.layers))
    own = profile.flops / mesh.devices
    kernel = own / layers / 3 / microbatches
    rate = device.peak(dtype).value * device.efficiency.at(max(kernel, 1.0))
    bubble = (microbatches + mesh.pipe - 1) / microbatches
    passed = 5 * profile.output_bytes / mesh.devices / device.memory_bandwidth.value
    return max(own / rate, passed) * bubble + _moved(profile, plan, cluster)


def _moved(profile: Profile, plan: Plan, cluster: Cluster) -> float:
    mesh = plan.mesh
    held = profile.parameter_bytes / mesh.tensor / mesh.pipe
    between = max((b.output_bytes for b in profile.blocks), default=0)
    handed = sum(b.output_bytes for b in profile.blocks) or profile.output_bytes
    samples = mesh.batch_shards * mesh.spatial_shards
    total = 0.0
    sums = [a for a in ("data", "spatial_h") if mesh.size(a) > 1]
    if sums:
        group = group_of(cluster, mesh, sums)
        total += seconds("all-reduce", held / mesh.fsdp, 1, group)
    if mesh.fsdp > 1:
        group = group_of(cluster, mesh, ["fsdp"])
        total += 3 * seconds("all-gather", held, len(profile.layers), group)
    if mesh.tensor > 1:
        group = group_of(cluster, mesh, ["tensor"])
        total += 4 * seconds("all-reduce", handed / samples, len(profile.blocks), group)
    if mesh.spatial_h > 1:
        group = group_of(cluster, mesh, ["spatial_h"])
        rows = math.sqrt(max(1.0, profile.output_bytes / max(1, profile.batch)))
        halos = 2 * profile.output_bytes / samples / rows
        total += seconds("collective-permute", halos, 2 * len(profile.layers), group)
    if mesh.pipe > 1:
        group = group_of(cluster, mesh, ["pipe"])
        total += 2 * seconds("collective-permute", between / samples, mesh.pipe, group)
    return total
