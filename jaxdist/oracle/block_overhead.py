"""Whole: how many times as long as the sum of its layers a block takes.

    longer(b) = seconds(b, n) / sum over layers of b of seconds(l, n)

    seconds(b, n)   what the block was timed at, n samples, the way back apart
    forward         in stages 2 K(b, n) / memory bandwidth more

K are the bytes that the block keeps for its backward pass: stages copy them to where
microbatches in flight lie. Samples and weights are whole ones in both; what a device
has of a divided layer takes as much longer.
"""

from collections.abc import Callable
from typing import Final

from jaxdist.core.cluster.block_timings import block_signature
from jaxdist.core.cluster.device import Device
from jaxdist.core.profile import LayerProfile
from jaxdist.oracle.step_description import StepDescription

_COPY_PASSES: Final = 2
"""Times that a copy passes over what is copied."""

ForwardBackward = tuple[float, float]
"""Of a forward and of a backward pass."""


def block_overhead(
    case: StepDescription,
    device: Device,
    block: str,
    layer_time: Callable[[LayerProfile, float], ForwardBackward],
) -> ForwardBackward:
    """Return by how much a block takes longer; 1 where blocks like it were not timed.

    Layers that were measured themselves stay as they are.

    Args:
        case: network and layout.
        device: what it was timed on.
        block: its name; that of layers without a block stands for the last one.
        layer_time: seconds of a part of a layer, as they are timed or counted.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    profile, table = case.profile, device.blocks
    if table is None or not profile.blocks:
        return 1.0, 1.0
    share = 1 / (case.block_sample_shards(block) * case.microbatches)
    name, peak = block or profile.blocks[-1].name, device.peak(case.dtype).value
    found = table.at(block_signature(profile, name), share * profile.batch, peak)
    layers = profile.layers_of(name)
    if found is None or any(x.seconds_forward is not None for x in layers):
        return 1.0, 1.0
    each = [layer_time(layer, share) for layer in layers]
    forward, backward = (sum(one) for one in zip(*each, strict=True))
    if not forward or not backward:
        return 1.0, 1.0
    copied = (
        _COPY_PASSES * found.kept / device.memory_bandwidth.value if case.stages else 0
    )
    return (found.forward_s + copied) / forward, found.backward_s / backward
