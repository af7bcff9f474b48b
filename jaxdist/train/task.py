"""A task: a network, what it is scored on, and how its weights move."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxdist.profile.abstract import constant_rngs
from jaxdist.profile.repeated_blocks import find_equal_blocks
from jaxdist.train import ema as average
from jaxdist.train.objective import Classification, Objective
from jaxdist.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that a step needs besides its layout."""

    model: Callable[..., nnx.Module]
    """Makes the network: `model(rngs=nnx.Rngs(seed))`."""
    optimizer: optax.GradientTransformation
    """Moves the parameters."""
    objective: Objective = field(default_factory=Classification)
    """What the network is called on and scored against."""
    microbatches: int = 1
    """Parts of a batch whose gradients are added up before a step."""
    average: float = 0.0
    """Share of the old average of the weights in the new; 0 keeps no average."""
    seed: int = 0
    """Source of initial weights and of all noise."""
    dtype: Any = None
    """Dtype of activations; None leaves that of the inputs."""
    param_dtype: Any = jnp.float32
    """Dtype of parameters, statistics and optimizer state."""

    def in_parts(self, microbatches: int) -> "Task":
        """Return the task with another number of microbatches.

        What is known of its network stays known.
        """
        one = replace(self, microbatches=microbatches)
        vars(one).update(graph=self.graph, state=self.state)
        return one

    def network(self) -> nnx.Module:
        """Build the network with its first weights, a function of the seed alone."""
        # Weights are drawn with XLA's own generator: the default one takes three times
        # as long to compile for a whole network.
        return self._made(nnx.Rngs(jax.random.key(self.seed, impl="rbg")))

    def _made(self, rngs: nnx.Rngs) -> nnx.Module:
        network = self.model(rngs=rngs)
        nnx.update(network, jax.tree.map(self._cast, nnx.state(network)))
        return network

    def init(self) -> TrainState:
        """Return the state before the first step."""
        return self._first(self.network())

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
        """Build the network on shapes alone, once."""
        found: list[nnx.GraphDef[nnx.Module]] = []

        def make() -> tuple[Any, Any]:
            graph, params, *rest = nnx.split(
                self._made(constant_rngs()), nnx.Param, ...
            )
            found.append(graph)
            return params, rest[0]

        params, rest = jax.eval_shape(make)
        # What an optimizer keeps of blocks that have the same arrays is the same.
        same = find_equal_blocks(nnx.merge(found[0], params, rest))
        few = jax.eval_shape(self.optimizer.init, same.prune_state(params))
        kept = partial(average.init_ema, self.average)
        state = TrainState(
            step=jax.ShapeDtypeStruct((), jnp.int32),
            params=params,
            stats=rest,
            opt=same.expand_state(few),
            average=jax.eval_shape(kept, params, rest) if self.average else None,
        )
        return found[0], state

    def _first(self, network: nnx.Module) -> TrainState:
        _, params, *rest = nnx.split(network, nnx.Param, ...)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(
            step=zero,
            params=params,
            stats=rest[0],
            opt=self.optimizer.init(params),
            average=average.init_ema(self.average, params, rest[0]),
        )

    def _cast(self, x: jax.Array) -> jax.Array:
        """Cast floats, so that every precision starts from the same weights."""
        floats = jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(self.param_dtype) if floats else x
