"""A recipe: how a network is made, as data that a checkpoint can hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from flax import nnx


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Names the function that makes a network, and its settings."""

    maker: str
    """`module:function`, called as `function(settings, dtype=..., rngs=...)`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Plain values: they are written to JSON."""
    dtype: str | None = None
    """Dtype of activations; None follows the inputs."""

    def __call__(self, *, rngs: nnx.Rngs) -> nnx.Module:
        """Make the network.

        Args:
            rngs: source of its first weights.
        """
        module, name = self.maker.split(":")
        make = getattr(import_module(module), name)
        return make(self.settings, dtype=self.dtype, rngs=rngs)
