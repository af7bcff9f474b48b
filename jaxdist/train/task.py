"""A task: a network, its objective and its optimizer, without a layout."""

import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxdist.core.dtypes import is_complex
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.records import parse_record
from jaxdist.layers.experts import ChoiceShares
from jaxdist.profile.abstract import constant_rngs, is_trainable
from jaxdist.profile.repeated_blocks import RepeatedBlocks, find_equal_blocks
from jaxdist.train.lora import LoraConfig, add_adapters
from jaxdist.train.objective import Classification, Objective
from jaxdist.train.state import (
    TrainState,
    init_ema,
    named_leaves,
    replace_leaves,
)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model constructor and its settings, as plain data that a checkpoint holds."""

    maker: str
    """`module:function`, called as `function(settings, dtype=..., rngs=...)`."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings: values that JSON holds."""
    dtype: str | None = None
    """Dtype of activations; None for that of the inputs."""
    lora: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of `LoraConfig`; empty for a network without adapters."""

    def __call__(self, *, rngs: nnx.Rngs) -> nnx.Module:
        """Build the network.

        Args:
            rngs: random streams of the initial weights.
        """
        module, name = self.maker.split(":")
        make = getattr(import_module(module), name)
        network: nnx.Module = make(self.settings, dtype=self.dtype, rngs=rngs)
        # Behind the weights, which are drawn as they are without adapters.
        if self.lora:
            config = parse_record(LoraConfig, self.lora, "settings of adapters")
            add_adapters(network, config, rngs)
        return network


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that a training step needs besides its layout."""

    model: Callable[..., nnx.Module]
    """Constructor of the network: `model(rngs=nnx.Rngs(seed))`."""
    optimizer: optax.GradientTransformation
    """Optimizer of the parameters."""
    objective: Objective = field(default_factory=Classification)
    """Inputs, targets and loss of the network."""
    metrics: Mapping[str, Callable[..., jax.Array]] = field(
        default_factory=dict, hash=False
    )
    """Further metrics of an evaluation: `metric(outputs, batch)`, a number a sample."""
    microbatches: int = 1
    """Microbatches of a batch, whose gradients are accumulated."""
    average: float = 0.0
    """Decay of the moving average of the weights; 0 for no average."""
    gradient_norm: bool = False
    """Whether a step returns the norm of its gradient."""
    frozen: tuple[str, ...] = ()
    """Patterns of the paths of parameters that are not trained: `base.*`."""
    trained: tuple[str, ...] = ()
    """Patterns of those that alone are trained, the others frozen; none: of all."""
    seed: int = 0
    """Seed of the initial weights and of all noise."""
    dtype: Any = None
    """Dtype of activations; None for that of the inputs."""
    param_dtype: Any = jnp.float32
    """Dtype of parameters, statistics and optimizer state."""

    @property
    def is_partial(self) -> bool:
        """Whether some parameters are frozen."""
        return bool(self.frozen or self.trained)

    @functools.cached_property
    def frozen_params(self) -> frozenset[str]:
        """Names of the parameters that could be trained and are not."""
        flat = nnx.to_flat_state(self.state.stats)
        return frozenset(
            "/".join(map(str, path)) for path, x in flat if is_trainable(path, x)
        )

    @functools.cached_property
    def routing_stats(self) -> frozenset[str]:
        """Names of what mixtures of experts keep of how tokens were routed."""
        flat = nnx.to_flat_state(self.state.stats)
        return frozenset(
            "/".join(map(str, path)) for path, x in flat if isinstance(x, ChoiceShares)
        )

    @property
    def num_params(self) -> int:
        """Numbers of the parameters that are trained."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.state.params))

    @property
    def num_frozen(self) -> int:
        """Numbers of the parameters that are not trained."""
        held = named_leaves(self.state.stats)
        return sum(held[name].size for name in self.frozen_params)

    def in_parts(self, microbatches: int) -> "Task":
        """Return the task with another number of microbatches."""
        one = replace(self, microbatches=microbatches)
        # The traced network is the same: tracing it again takes seconds.
        vars(one).update(graph=self.graph, state=self.state)
        return one

    def init(self, weights: Mapping[str, jax.Array] | None = None) -> TrainState:
        """Return the state before the first step.

        Args:
            weights: parameters and statistics to start from by leaf name; those that
                are not given are drawn, a function of the seed alone.
        """
        # Weights are drawn with XLA's own generator: the default one takes three times
        # as long to compile for a whole network.
        network = self._build(nnx.Rngs(jax.random.key(self.seed, impl="rbg")))
        _, params, rest = self.split(network)
        if weights:
            params, rest = (
                replace_leaves(tree, {**named_leaves(tree), **weights})
                for tree in (params, rest)
            )
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            stats=rest,
            opt=self.optimizer.init(params),
            average=init_ema(self.average, params, rest),
        )

    def split(self, network: nnx.Module) -> tuple[nnx.GraphDef[nnx.Module], Any, Any]:
        """Split a network into its structure, what is trained of it, and the rest.

        The rest are running statistics, frozen parameters, and variables of any kind.
        """

        def is_trained(path: Sequence[Any], variable: nnx.Variable[Any]) -> bool:
            name = ".".join(map(str, path))
            fixed = any(fnmatch.fnmatchcase(name, each) for each in self.frozen)
            free = any(fnmatch.fnmatchcase(name, each) for each in self.trained or "*")
            return is_trainable(path, variable) and free and not fixed

        graph, params, *rest = nnx.split(network, is_trained, ...)
        return graph, params, rest[0]

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

        def make(rngs: nnx.Rngs) -> tuple[Any, Any]:
            graph, params, rest = self.split(self._build(rngs))
            found.append(graph)
            return params, rest

        params, rest = jax.eval_shape(lambda: make(constant_rngs()))
        # A network that keeps its random streams needs real ones, which count.
        if nnx.state(nnx.merge(found[0], params, rest), nnx.RngState):
            params, rest = jax.eval_shape(lambda: make(nnx.Rngs(0)))
        # Equal blocks have equal optimizer states, so only one of them is traced.
        same = find_equal_blocks(nnx.merge(found[-1], params, rest))
        if self.is_partial:  # equal blocks may be frozen one by one
            same = RepeatedBlocks(names=same.names)
        few = jax.eval_shape(self.optimizer.init, same.prune_state(params))
        average = partial(init_ema, self.average)
        state = TrainState(
            step=jax.ShapeDtypeStruct((), jnp.int32),
            params=params,
            stats=rest,
            opt=same.expand_state(few),
            average=jax.eval_shape(average, params, rest) if self.average else None,
        )
        return found[-1], state

    def check_frozen(self) -> None:
        """Refuse patterns of frozen parameters that match nothing, or everything.

        Raises:
            BadInput: names the pattern, and parameters that there are.
        """
        if not self.frozen:
            return
        every = replace(self, frozen=())
        names = [n.replace("/", ".") for n in named_leaves(every.state.params)]
        for pattern in self.frozen:
            if not fnmatch.filter(names, pattern):
                tops = list(dict.fromkeys(name.split(".")[0] for name in names))
                near = did_you_mean(pattern.split(".")[0], tops)
                raise BadInput(
                    f"no parameter is at {pattern}",
                    rule="optim.frozen are patterns of paths of parameters, separated "
                    "by commas",
                    values=f"optim.frozen has {pattern!r}; the network has {names[0]}, "
                    f"... in {', '.join(tops)}",
                    remedy=f"optim.frozen={near or tops[0]}.*",
                )
        if not jax.tree.leaves(self.state.params):
            raise BadInput(
                "nothing is left to train",
                rule="optim.frozen leaves some parameters out",
                values=f"optim.frozen = {','.join(self.frozen)} matches all of "
                f"{len(names)} parameters",
                remedy="optim.frozen= trains all of them",
            )

    def _build(self, rngs: nnx.Rngs) -> nnx.Module:
        network = self.model(rngs=rngs)

        # Weights are drawn in the network's own dtype and cast afterwards, so that
        # every precision starts from the same weights.
        def cast(x: jax.Array) -> jax.Array:
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                # As numbers, which every part of a step and a checkpoint can hold; the
                # generator that draws the weights has a key of twice the length.
                return jax.random.key_data(x)[..., :2]
            if not jnp.issubdtype(x.dtype, jnp.inexact):
                return x
            narrow = np.dtype(self.param_dtype).itemsize < 8
            wide = jnp.complex64 if narrow else jnp.complex128
            return x.astype(wide if is_complex(x.dtype) else self.param_dtype)

        nnx.update(network, jax.tree.map(cast, nnx.state(network)))
        return network
