"""A plan: how the training of a network is split over devices, as plain data."""

from jaxdist.core.plan.plan import (
    PLAN_TARGET_KEY,
    AfterSpatial,
    ContextForm,
    MeshShape,
    Plan,
    TensorSplit,
)

__all__ = [
    "PLAN_TARGET_KEY",
    "AfterSpatial",
    "ContextForm",
    "MeshShape",
    "Plan",
    "TensorSplit",
]
