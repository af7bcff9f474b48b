"""The carry: what a device has between two beats, and how what arrives is kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import jax

from jaxdist.pipeline import flat_messages
from jaxdist.pipeline.device_cond import ScheduleRow
from jaxdist.pipeline.flat_messages import FlatBuffers
from jaxdist.pipeline.stage_parameters import SlotArrays


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "total",
        "grads",
        "stats",
        "inputs",
        "gradients",
        "kept",
        "up",
        "down",
        "moving",
    ),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class LoopCarry:
    """What a device has between two beats."""

    total: Any
    """Sum of what the last stage returned."""
    grads: Any
    """Sums of gradients, `SlotArrays`; None without backward passes."""
    stats: SlotArrays
    """Running statistics."""
    inputs: FlatBuffers
    """Ring of what arrived from the stage before."""
    gradients: FlatBuffers
    """Ring of gradients from the stage behind."""
    kept: FlatBuffers
    """Ring of what forward passes keep."""
    up: tuple[FlatBuffers, ...]
    """What arrives next from the stage before, hop by hop; until it is sent, what was
    made comes first.
    """
    down: tuple[FlatBuffers, ...]
    """What arrives next from the stage behind."""
    moving: Any = None
    """Weights that change meanwhile, and what changes them; None where none do."""


def _receive_activation(
    permutation: int, row: ScheduleRow, carry: LoopCarry
) -> LoopCarry:
    """Keep what arrived from the stage before."""
    kept = flat_messages.write_row(
        carry.inputs, row["comes"][permutation], carry.up[permutation]
    )
    return replace(carry, inputs=kept)


def _receive_cotangent(
    permutation: int, row: ScheduleRow, carry: LoopCarry
) -> LoopCarry:
    """Keep the gradient that arrived from the stage behind."""
    kept = flat_messages.write_row(
        carry.gradients, row["returns"][permutation], carry.down[permutation]
    )
    return replace(carry, gradients=kept)


def release_residuals(row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
    """Give up what a backward pass has read: see `forms.drop`."""
    kept = flat_messages.overwrite_row(
        carry.kept, row["kept"], (carry.grads, carry.down)
    )
    return replace(carry, kept=kept)


RECEIVERS: Final[Mapping[str, Callable[[int, ScheduleRow, LoopCarry], LoopCarry]]] = (
    MappingProxyType({"comes": _receive_activation, "returns": _receive_cotangent})
)
"""What keeps an arrival, by its row of the table."""
