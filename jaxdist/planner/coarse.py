"""Coarse: a first estimate of a layout, from the totals of a profile alone.

    compute   FLOPs / (devices peak e(FLOPs of a layer on a device)), times the ticks
              of a pipeline over those with work: (m + P - 1) / m
    sums      gradients over the devices that have the same parameters; with fsdp three
              passes over the parameters; with tensor four sums of what blocks hand on
    halos     edge rows of what the layers make, twice

It orders layouts before they are described, which takes a thousand times as long. What
it leaves out of the best so many is not looked at: that is the bound of the search.
"""

from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import Plan
from jaxdist.core.profile import Profile
from jaxdist.oracle.groups import group_of
from jaxdist.oracle.prices import seconds

_PASSES: Final = 5
"""Times that a step passes over what layers make."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the estimate knows of a network on a global batch."""

    flops: int
    """Forward and backward."""
    parameters: int
    """Bytes of the parameters."""
    made: int
    """Bytes that layers make."""
    handed: int
    """Bytes that blocks hand on, all together."""
    largest: int
    """Bytes that the largest of them hands on."""
    kernels: int
    """Layers that compute."""
    layers: int
    """All layers."""
    blocks: int
    """Blocks of the chain."""
    rows: float
    """Rows of an image, taken for a square of what a sample makes."""


def totals(profile: Profile) -> Totals:
    """Add a profile up."""
    handed = [block.output_bytes for block in profile.blocks]
    made = profile.output_bytes
    return Totals(
        flops=profile.flops,
        parameters=profile.parameter_bytes,
        made=made,
        handed=sum(handed) or made,
        largest=max(handed, default=0),
        kernels=max(1, sum(layer.flops > 0 for layer in profile.layers)),
        layers=len(profile.layers),
        blocks=len(profile.blocks),
        rows=max(1.0, made / max(1, profile.batch)) ** 0.5,
    )


def estimate(
    network: Totals, plan: Plan, cluster: Cluster, microbatches: int, dtype: str
) -> float:
    """Return seconds a step, to order layouts by.

    Raises:
        BadInput: the cluster is too small, or has no speed for the dtype.
    """
    mesh, device = plan.mesh, cluster.device
    devices = mesh.devices
    own = network.flops / devices
    kernel = own / network.kernels / 3 / microbatches
    rate = device.peak(dtype).value * device.efficiency.at(max(kernel, 1.0))
    bubble = (microbatches + mesh.pipe - 1) / microbatches
    passed = _PASSES * network.made / devices / device.memory_bandwidth.value
    return max(own / rate, passed) * bubble + _moved(network, plan, cluster)


def _moved(network: Totals, plan: Plan, cluster: Cluster) -> float:
    mesh = plan.mesh
    held = network.parameters / mesh.tensor / mesh.pipe
    samples = mesh.batch_shards * mesh.spatial_shards
    sums = tuple(a for a in ("data", "spatial_h") if mesh.size(a) > 1)
    asked = (
        ("all-reduce", held / mesh.fsdp, 1, 1, sums),
        ("all-gather", held, network.layers, 3, _along(mesh.fsdp, "fsdp")),
        (
            "all-reduce",
            network.handed / samples,
            network.blocks,
            4,
            _along(mesh.tensor, "tensor"),
        ),
        (
            "collective-permute",
            2 * network.made / samples / network.rows,
            2 * network.layers,
            1,
            _along(mesh.spatial_h, "spatial_h"),
        ),
        (
            "collective-permute",
            network.largest / samples,
            mesh.pipe,
            2,
            _along(mesh.pipe, "pipe"),
        ),
    )
    return sum(
        times * seconds(kind, payload, arrays, group_of(cluster, mesh, axes))
        for kind, payload, arrays, times, axes in asked
        if axes
    )


def _along(devices: int, axis: str) -> tuple[str, ...]:
    return (axis,) if devices > 1 else ()
