"""What a training step tells of itself, beside the next state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import jax

GRADIENT_NORM: Final = "gradient_norm"
"""Norm of the gradient over all parameters, before it is clipped."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("loss", "scalars"),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """Loss and further numbers of a training step: [], or [replicas]."""

    loss: Any
    """Mean over the samples of the batch, in float32 or wider."""
    scalars: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers, by the name of their column in `metrics.jsonl`."""
