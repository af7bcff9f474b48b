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

    origin: str
    """Where it is from."""
    seconds: Callable[[LayerProfile], tuple[float, float]]
    """Forward and backward pass of a layer on the batch of its profile."""


def constant_rate_model(rate: float) -> LayerTimeModel:
    """Return a device that does all FLOPs at one rate.

    Args:
        rate: FLOP/s.
    """
    return LayerTimeModel(
        origin=f"FLOPs at {format_size(rate, 'FLOP/s')}",
        seconds=lambda row: (row.flops_forward / rate, row.flops_backward / rate),
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
        spent = worker.spent(row)
        return spent.forward, spent.backward

    return LayerTimeModel(
        origin=f"predicted for {device.name} in {dtype}", seconds=seconds
    )


def _profile_dtype(profile: Profile) -> str:
    """Return the number format of the inputs; of tokens and the like float32."""
    named = (re.match(r"(b?float\d+)", text) for text in profile.inputs)
    return next((found[1] for found in named if found), "float32")
