"""FLOPs of one device: what a plan predicts for a layer, and what the traced step does.

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
from typing import Final

from flax import nnx
from jax.extend.core import Jaxpr

from jaxdist.core.plan import Plan
from jaxdist.layers import Conv
from jaxdist.layers.tensor_role import Roles
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
    """FLOPs of one layer in one step."""

    layer: str
    """Path of the layer."""
    planned: int
    """FLOPs a device that the plan predicts."""
    traced: int
    """FLOPs a device in the traced step, without what is computed again on purpose."""

    @property
    def is_redundant(self) -> bool:
        """Whether the step does more than the plan accounts for."""
        return self.traced > _REDUNDANCY_THRESHOLD * self.planned


def predict_flops(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> dict[str, int]:
    """Predict the FLOPs of convolutions, dense layers and the logits of tied tables.

    Forward and backward, biases included.

    Args:
        plan: the layout.
        calls: the network's layer calls on the global batch.
        roles: what layers do with the tensor axis.

    Returns:
        FLOPs on one device, by the path of the layer.
    """
    total: Counter[str] = Counter()
    for call in calls_of_type(calls, Conv):
        # Channels by the role along tensor, rows and samples by the block of a device.
        local, layer = localize_channels(plan, roles, call), call.layer
        # Channels that one filter reads: those of its group, or a device's share.
        split = plan.mesh.tensor if roles.get(call.path) in ("channel", "row") else 1
        channels = int(layer.kernel.shape[-2]) // split
        (samples, *_), windows = device_block(plan, local)
        products = 1
        for window in windows:
            taps = (window.extent - 1) // window.dilation + 1
            products *= (
                window.outputs * taps
                if window.axis is not None
                else valid_taps(
                    window.rows,
                    taps,
                    window.outputs,
                    stride=window.stride,
                    low=window.pads[0],
                    rhs_dilation=window.dilation,
                )
            )
        # Two FLOPs, a multiplication and an addition, for each product; forward, for
        # the kernel and, unless nobody needs it, for the input.
        outputs = samples * local.out_shape[-1]
        once = 2 * outputs * channels * products
        # The bias is one addition an output, and one more for its gradient.
        added = outputs * math.prod(w.outputs for w in windows)
        passes = 2 if call.is_first else 3
        total[call.path] += passes * once + 2 * (layer.bias is not None) * added

    for call in calls_of_type(calls, nnx.Linear):
        local = localize_channels(plan, roles, call)
        *outer, features = block_shape(plan, local.shape)
        outputs = math.prod(outer) * local.out_shape[-1]
        passes = 2 if call.is_first else 3
        has_bias = call.layer.bias is not None
        total[call.path] += passes * 2 * outputs * features + 2 * has_bias * outputs

    for call in calls_of_type(calls, nnx.Embed):
        if call.method == "attend":  # a lookup does no arithmetic
            local = localize_channels(plan, roles, call)
            *outer, features = block_shape(plan, local.shape)
            outputs = math.prod(outer) * local.out_shape[-1]
            total[call.path] += 3 * 2 * outputs * features
    return dict(total)


def sum_traced_flops(jaxpr: Jaxpr, layers: Iterable[str]) -> Counter[str]:
    """Sum the FLOPs a device of a traced step by layer; "" collects the rest.

    Args:
        jaxpr: the traced step; shapes inside its `shard_map` are those of a device.
        layers: paths whose scopes are looked for.
    """
    known, total = set(layers), Counter[str]()
    for use in walk_jaxpr(jaxpr):
        # Recomputation is asked for by plan.remat: it is no repeat to warn of.
        if REMAT_SCOPE in use.scopes:
            continue
        # Gradients of an array that several layers read are summed in one's scope.
        shared = use.eqn.primitive.name == "add_any"
        owner = next((s for s in reversed(use.scopes) if s in known), "")
        total["" if shared else owner] += use.flops
    return total


def compare_flops(planned: Mapping[str, int], jaxpr: Jaxpr) -> tuple[LayerFlops, ...]:
    """Compare the FLOPs of a traced step with the plan's, layer by layer.

    Args:
        planned: FLOPs by the path of a layer; one without a scope of its own in the
            step is left out.
        jaxpr: the traced step.
    """
    found = sum_traced_flops(jaxpr, planned)
    return tuple(
        LayerFlops(layer=layer, planned=flops, traced=found[layer])
        for layer, flops in planned.items()
        # XLA may drop a layer whose result nobody needs; it has no scope then.
        if found[layer]
    )
