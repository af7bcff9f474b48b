"""A task: a network, its objective and its optimizer, without a layout."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxdist.profile.abstract import constant_rngs
from jaxdist.profile.repeated_blocks import find_equal_blocks
from jaxdist.train.objective import Classification, Objective
from jaxdist.train.state import TrainState, init_ema


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model constructor and its settings, as plain data that a checkpoint holds."""

    maker: str
    """`module:function`, called as `function(settings, dtype=..., rngs=...)`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings: values that JSON holds."""
    dtype: str | None = None
    """Dtype of activations; None for that of the inputs."""

    def __call__(self, *, rngs: nnx.Rngs) -> nnx.Module:
        """Build the network.

        Args:
            rngs: random streams of the initial weights.
        """
        module, name = self.maker.split(":")
        make = getattr(import_module(module), name)
        return make(self.settings, dtype=self.dtype, rngs=rngs)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that a training step needs besides its layout."""

    model: Callable[..., nnx.Module]
    """Constructor of the network: `model(rngs=nnx.Rngs(seed))`."""
    optimizer: optax.GradientTransformation
    """Optimizer of the parameters."""
    objective: Objective = field(default_factory=Classification)
    """Inputs, targets and loss of the network."""
    microbatches: int = 1
    """Microbatches of a batch, whose gradients are accumulated."""
    average: float = 0.0
    """Decay of the moving average of the weights; 0 for no average."""
    seed: int = 0
    """Seed of the initial weights and of all noise."""
    dtype: Any = None
    """Dtype of activations; None for that of the inputs."""
    param_dtype: Any = jnp.float32
    """Dtype of parameters, statistics and optimizer state."""

    def in_parts(self, microbatches: int) -> "Task":
        """Return the task with another number of microbatches."""
        one = replace(self, microbatches=microbatches)
        # The traced network is the same: tracing it again takes seconds.
        vars(one).update(graph=self.graph, state=self.state)
        return one

    def init(self) -> TrainState:
        """Return the state before the first step, a function of the seed alone."""
        # Weights are drawn with XLA's own generator: the default one takes three times
        # as long to compile for a whole network.
        network = self._build(nnx.Rngs(jax.random.key(self.seed, impl="rbg")))
        _, params, *rest = nnx.split(network, nnx.Param, ...)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            stats=rest[0],
            opt=self.optimizer.init(params),
            average=init_ema(self.average, params, rest[0]),
        )

    @functools.cached_property
    def graph(self) -> nnx.GraphDef[nnx.Module]:
        """The network's structure."""
        return self._abstract[0]

    @functools.cached_property
    def state(self) -> TrainState:
        """Shapes and dtypes of the state."""
        return self._abstract[1]

    @functools.cached_property
    def _abstract(self) -> tuple[nnx.GraphDef[nnx.Module], TrainState]:
        """Structure of the network, and the state of shapes; traced once."""
        found: list[nnx.GraphDef[nnx.Module]] = []

        def make() -> tuple[Any, Any]:
            graph, params, *rest = nnx.split(
                self._build(constant_rngs()), nnx.Param, ...
            )
            found.append(graph)
            return params, rest[0]

        params, rest = jax.eval_shape(make)
        # Equal blocks have equal optimizer states, so only one of them is traced.
        same = find_equal_blocks(nnx.merge(found[0], params, rest))
        few = jax.eval_shape(self.optimizer.init, same.prune_state(params))
        average = partial(init_ema, self.average)
        state = TrainState(
            step=jax.ShapeDtypeStruct((), jnp.int32),
            params=params,
            stats=rest,
            opt=same.expand_state(few),
            average=jax.eval_shape(average, params, rest) if self.average else None,
        )
        return found[0], state

    def _build(self, rngs: nnx.Rngs) -> nnx.Module:
        network = self.model(rngs=rngs)

        # Weights are drawn in the network's own dtype and cast afterwards, so that
        # every precision starts from the same weights.
        def cast(x: jax.Array) -> jax.Array:
            floats = jnp.issubdtype(x.dtype, jnp.floating)
            return x.astype(self.param_dtype) if floats else x

        nnx.update(network, jax.tree.map(cast, nnx.state(network)))
        return network
