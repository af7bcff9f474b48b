"""Own: the dense layers and convolutions of one network, to be timed as they are.

Each is timed at the sizes that plans give it: all samples of a step, as where the
weights are split, and the parts that as many devices and as many microbatches have.
"""

from collections.abc import Iterator, Sequence

from flax import nnx

from jaxdist.calibrate.kernels import KernelCase, conv_case, dense_case
from jaxdist.layers.conv import Conv
from jaxdist.profile.layer_calls import LayerCall


def network_kernel_cases(
    calls: Sequence[LayerCall], divisors: Sequence[int], max_flops: float
) -> tuple[KernelCase, ...]:
    """List what a network's layers compute, each shape once.

    Args:
        calls: of the network, on a whole batch.
        divisors: into which samples are divided.
        max_flops: FLOPs of the largest that is timed.
    """
    found = {
        subject.shape: subject
        for call in calls
        for part in divisors
        for subject in _kernel_cases(call, max(1, call.shape[0] // part))
        if subject.shape.flops <= max_flops
    }
    return tuple(found.values())


def _kernel_cases(call: LayerCall, samples: int) -> Iterator[KernelCase]:
    """Return what a layer computes on so many samples; nothing for other layers."""
    layer, (_, *dims) = call.layer, call.shape
    if call.method != "__call__":
        return
    if isinstance(layer, Conv):
        windows = layer.windows(tuple(dims[:-1]))
        weights = tuple(layer.kernel[...].shape)
        groups = layer.feature_group_count
        yield conv_case((samples, *dims), weights, windows, groups)
    elif isinstance(layer, nnx.Linear):
        rows = samples
        for dim in dims[:-1]:
            rows *= dim
        yield dense_case(rows, layer.in_features, layer.out_features)
