"""A plan: how the training of a network is split over devices, as plain data."""

from jaxdist.core.plan.plan import MADE_FOR, AfterSpatial, MeshShape, Plan, TensorSplit

__all__ = ["MADE_FOR", "AfterSpatial", "MeshShape", "Plan", "TensorSplit"]
