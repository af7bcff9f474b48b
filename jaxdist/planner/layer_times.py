"""Speed: the seconds of layers that nobody measured, and where they are from."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from jaxdist.core.cluster.device import Device
from jaxdist.core.plan import Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.core.text.formatting import format_size


@dataclass(frozen=True, kw_only=True)
class LayerTimeModel:
    """How fast a device is, layer by layer."""

    provenance: str
    """Where it is from."""
    layer_seconds: Callable[[LayerProfile], tuple[float, float]]
    """Forward and backward pass of a layer on the batch of its profile."""


def constant_rate_model(flops_per_s: float) -> LayerTimeModel:
    """Return a device that does all FLOPs at one rate.

    Args:
        flops_per_s: FLOP/s.
    """
    return LayerTimeModel(
        provenance=f"FLOPs at {format_size(flops_per_s, 'FLOP/s')}",
        layer_seconds=lambda row: (
            row.flops_forward / flops_per_s,
            row.flops_backward / flops_per_s,
        ),
    )


def device_time_model(device: Device, profile: Profile) -> LayerTimeModel:
    """Return a device of a cluster, as the oracle predicts it.

    Args:
        device: peak, efficiency by the FLOPs of a kernel, memory bandwidth, launch.
        profile: its inputs say the dtype.
    """
    from jaxdist.oracle.compute_times import ComputeCostModel
    from jaxdist.oracle.step_description import (
        StepDescription,  # jax, which other questions do without
    )
    from jaxdist.partition.ledger import Ledger

    plan = Plan()
    ledger = Ledger(plan=plan, rows=())
    dtype = _profile_dtype(profile)
    case = StepDescription(profile=profile, plan=plan, ledgers=(ledger,), dtype=dtype)
    worker = ComputeCostModel(case=case, device=device, ledger=ledger, microbatches=1)

    def seconds(row: LayerProfile) -> tuple[float, float]:
        spent = worker.microbatch_time(row)
        return spent.forward, spent.backward

    return LayerTimeModel(
        provenance=f"predicted for {device.name} in {dtype}", layer_seconds=seconds
    )


def _profile_dtype(profile: Profile) -> str:
    """Return the number format of the inputs; of tokens and the like float32."""
    named = (re.match(r"(b?float\d+)", text) for text in profile.inputs)
    return next((found[1] for found in named if found), "float32")
