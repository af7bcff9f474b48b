"""Work: the FLOPs that a plan gives a layer on one device, and those its step does.

A convolution of B samples on a device, C_in channels in `groups`, C_out filters:

    forward     2 B C_out C_in / groups * prod_d m_d
    backward    as much for the kernel, and for the input unless nobody needs that

    m_d = outputs * taps           along a split dim: the rows of a halo are real rows
          taps that meet a row     along a whole dim: those on padding do no work

so that a split of rows costs 1/p of one device's work and, at the two edges of the
image, the taps on padding: a share (K - 1) / (N K) for K taps, SAME and N rows. A dense
layer costs 2 C_in C_out for each vector, as often.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flax import nnx
from jax.extend.core import Jaxpr

from jaxdist.core.plan import Plan
from jaxdist.layers import Conv
from jaxdist.layers.tensor_role import Roles
from jaxdist.layers.window import Window
from jaxdist.partition.spatial_parallel import block_shape, device_block
from jaxdist.partition.tensor_parallel import localize_channels
from jaxdist.profile.flops import valid_taps
from jaxdist.profile.jaxpr_walk import walk_jaxpr
from jaxdist.profile.layer_calls import LayerCall, calls_of_type

REMAT_SCOPE: Final = "rematted_computation"
"""The scope of what a backward pass computes again on purpose."""

_REDUNDANCY_THRESHOLD: Final = 1.25
"""More than the plan says by this much is a repeat: along an axis it is at least 2."""


@dataclass(frozen=True, kw_only=True)
class LayerFlops:
    """What one layer does in one step."""

    layer: str
    """Path of the layer."""
    planned: int
    """FLOPs a device that the plan says."""
    traced: int
    """FLOPs a device in the traced step, without what is computed again on purpose."""

    @property
    def is_redundant(self) -> bool:
        """Whether the step does more than the plan accounts for."""
        return self.traced > _REDUNDANCY_THRESHOLD * self.planned


def predict_flops(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> dict[str, int]:
    """Predict the FLOPs of convolutions, dense layers and likenesses to a table's rows.

    Forward and backward.

    Args:
        plan: the layout.
        calls: the network's layer calls on the global batch.
        roles: what layers do with the tensor axis.

    Returns:
        FLOPs on one device, by the path of the layer.
    """
    total: Counter[str] = Counter()
    for call in calls_of_type(calls, Conv):
        own = localize_channels(plan, roles, call)
        total[call.path] += _conv_flops(plan, own, _filter_channels(plan, roles, call))
    for call in calls_of_type(calls, nnx.Linear):
        total[call.path] += _dense_flops(plan, localize_channels(plan, roles, call))
    for call in calls_of_type(calls, nnx.Embed):
        if call.method == "attend":
            total[call.path] += _attend_flops(
                plan, localize_channels(plan, roles, call)
            )
    return dict(total)


def sum_traced_flops(jaxpr: Jaxpr, layers: Iterable[str]) -> Counter[str]:
    """Sum the FLOPs a device of a traced step, by the innermost layer; "" without.

    Args:
        jaxpr: the traced step; shapes inside its `shard_map` are those of a device.
        layers: paths whose scopes are looked for.
    """
    known, total = set(layers), Counter[str]()
    for use in walk_jaxpr(jaxpr):
        if REMAT_SCOPE in use.scopes:
            continue
        # Gradients of an array that several layers read are summed in one's scope.
        shared = use.eqn.primitive.name == "add_any"
        owner = next((s for s in reversed(use.scopes) if s in known), "")
        total["" if shared else owner] += use.flops
    return total


def compare_flops(planned: Mapping[str, int], jaxpr: Jaxpr) -> tuple[LayerFlops, ...]:
    """Set the work of a traced step beside the plan's, layer by layer.

    Args:
        planned: FLOPs by the path of a layer; one without a scope of its own in the
            step is left out.
        jaxpr: the traced step.
    """
    found = sum_traced_flops(jaxpr, planned)
    return tuple(
        LayerFlops(layer=layer, planned=flops, traced=found[layer])
        for layer, flops in planned.items()
        if found[layer]
    )


def _filter_channels(plan: Plan, roles: Roles, call: LayerCall) -> int:
    """Return the channels that one filter of a convolution reads on a device."""
    kernel: Any = call.layer.kernel
    split = plan.mesh.tensor if roles.get(call.path) in ("channel", "row") else 1
    return int(kernel.shape[-2]) // split


def _conv_flops(plan: Plan, call: LayerCall, inputs: int) -> int:
    """Count one use of a convolution, its bias included.

    Args:
        plan: the layout.
        call: the use, with the channels of one device.
        inputs: channels that one filter reads.
    """
    layer: Any = call.layer
    (samples, *_), windows = device_block(plan, call)
    features = call.out_shape[-1]
    pairs = math.prod(map(_valid_products, windows))
    once = 2 * samples * features * inputs * pairs
    added = samples * features * math.prod(w.outputs for w in windows)
    has_bias = layer.bias is not None
    return (2 if call.is_first else 3) * once + 2 * has_bias * added


def _dense_flops(plan: Plan, call: LayerCall) -> int:
    """Count one use of a dense layer, its bias included."""
    layer: Any = call.layer
    *outer, features_in = block_shape(plan, call.shape)
    outputs = math.prod(outer) * call.out_shape[-1]
    once = 2 * outputs * features_in
    return (2 if call.is_first else 3) * once + 2 * (layer.bias is not None) * outputs


def _attend_flops(plan: Plan, call: LayerCall) -> int:
    """Count one use of a table that is asked how like its rows vectors are."""
    *outer, features = block_shape(plan, call.shape)
    return 3 * 2 * math.prod(outer) * features * call.out_shape[-1]


def _valid_products(window: Window) -> int:
    """Count the pairs of output row and tap that meet a row along one dim."""
    taps = (window.extent - 1) // window.dilation + 1
    if window.axis is not None:
        return window.outputs * taps
    return valid_taps(
        window.rows,
        taps,
        window.outputs,
        stride=window.stride,
        low=window.pads[0],
        rhs_dilation=window.dilation,
    )
