"""Staging: seconds of an exchange that goes through the memory of hosts.

A message is copied from the device to its host, between hosts' processes, and to the
other device: three copies, one after the other, on links that others use as well.

    halos   2 exchanges a layer (input, gradient of the output), two neighbours each:
            2 h d b * 3 phi / (share * link), phi = 2 p
    gather  passes (p - 1) / p * y d b * 3 phi / (share * link), phi = 2
    tail    as a gather of the last outputs with positions, there and back
    scatter as a gather of the images, which one device of a group reads for all

phi is the contention that ParaDL's tool has for the two patterns.
"""

import math
from collections.abc import Sequence
from typing import Final

from jaxdist.oracle.published.paradl.layers import CnnLayer
from jaxdist.oracle.published.paradl.system import ParadlSystem

COPIES_PER_MESSAGE: Final = 3
"""Of a message: off the device, between processes, onto the other device."""
_GATHER_CONTENTION: Final = 2
"""Contention of a gather."""
_GATHER_REDUCE_PASSES: Final = 3
"""Passes where gradients are summed as a whole: a gather, and an all-reduce."""


def halo_seconds(
    layers: Sequence[CnnLayer],
    devices: int,
    batch: float,
    system: ParadlSystem,
    bandwidth_share: float,
) -> float:
    """Return the seconds of the halos of one step.

    Args:
        layers: that are split.
        devices: p that share a sample.
        batch: samples of the group.
        system: whose hosts they go through.
        bandwidth_share: of the link that gets through.
    """
    size = 2 * system.element_bytes * batch * sum(layer.halo for layer in layers)
    messages = 4 * sum(layer.halo > 0 for layer in layers)
    per_byte = (
        COPIES_PER_MESSAGE
        * 2
        * devices
        / (bandwidth_share * system.host_link_bandwidth.value)
    )
    return size * per_byte + messages * system.host_link_alpha.value


def gather_seconds(
    layers: Sequence[CnnLayer],
    devices: int,
    batch: float,
    system: ParadlSystem,
    bandwidth_share: float,
) -> float:
    """Return the seconds in which outputs are gathered and their gradients summed."""
    size = system.element_bytes * batch * sum(layer.outputs for layer in layers)
    messages = (devices - 1) * len(layers) * system.host_link_alpha.value
    return _GATHER_REDUCE_PASSES * (
        _gather_pass_seconds(size, devices, system, bandwidth_share) + messages
    )


def tail_gather_seconds(
    layers: Sequence[CnnLayer],
    devices: int,
    batch: float,
    system: ParadlSystem,
    bandwidth_share: float,
) -> float:
    """Return the seconds of the gather before layers that are not split, and back."""
    last = next(one for one in reversed(layers) if math.prod(one.output_grid) > 1)
    size = system.element_bytes * batch * last.outputs
    messages = (devices - 1) * system.host_link_alpha.value
    return 2 * (_gather_pass_seconds(size, devices, system, bandwidth_share) + messages)


def scatter_seconds(
    layers: Sequence[CnnLayer],
    devices: int,
    batch: float,
    system: ParadlSystem,
    bandwidth_share: float,
) -> float:
    """Return the seconds in which one device of a group hands samples to the others.

    An image is decoded as a whole; of a volume each device reads its own part.
    """
    if len(layers[0].input_grid) > 2:
        return 0.0
    size = system.element_bytes * batch * layers[0].inputs
    return _gather_pass_seconds(size, devices, system, bandwidth_share)


def _gather_pass_seconds(
    size: float, devices: int, system: ParadlSystem, bandwidth_share: float
) -> float:
    """Return the seconds in which bytes of all devices are with each of them."""
    per_byte = (
        COPIES_PER_MESSAGE
        * _GATHER_CONTENTION
        / (bandwidth_share * system.host_link_bandwidth.value)
    )
    return size * (devices - 1) / devices * per_byte
