"""The train state: parameters, statistics, optimizer state and step count.

The exponential moving average of the weights, which is evaluated in their place.

    average <- d average + (1 - d) weights,    d = min(decay, (1 + t) / (10 + t))

after step t = 1, 2, ... (Polyak and Juditsky 1992).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdist.core.dtypes import real_dtype

TreeT = TypeVar("TreeT")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("step", "params", "stats", "opt", "average", "feedback", "replicas"),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Everything that must survive a restart.

    An abstract state has the same form, with a `jax.ShapeDtypeStruct` for each array.
    """

    step: Any
    """Steps done since initialization: int32 []."""
    params: Any
    """Parameters that are trained, an `nnx.State`."""
    stats: Any
    """All else that the network keeps, an `nnx.State`: running statistics, frozen
    parameters, variables of any kind.
    """
    opt: Any
    """State of the optax optimizer."""
    # Not in the optimizer's state, which an evaluation does not read.
    average: Any = None
    """Moving averages {"params", "stats"}; None without them."""
    feedback: Any = None
    """Error feedback of compressed gradients; None without compression."""
    replicas: Any = None
    """States of the replicas of an outer loop, None without one. With one, `params` and
    `stats` are the outer ones, and `opt` and `feedback` are in here.
    """

    @property
    def evaluated(self) -> tuple[Any, Any]:
        """Parameters and statistics to evaluate: the averages, where there are any."""
        if self.average is None:
            return self.params, self.stats
        return self.average["params"], self.average["stats"]


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by name: the path from the root, with slashes.

    Args:
        tree: any pytree; the value inside an `nnx.Variable` has the variable's name.

    >>> named_leaves({"stem": {"kernel": 1.0, "bias": 2.0}, "steps": [3]})
    {'stem/bias': 2.0, 'stem/kernel': 1.0, 'steps/0': 3}
    """
    # Variables are leaves here: their own inner path is no part of a name.
    paths, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
    named = []
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        arrays = jax.tree.leaves(leaf)
        # A variable of one's own may hold several arrays, or none.
        several = len(arrays) > 1
        named += [(f"{name}/{i}" if several else name, x) for i, x in enumerate(arrays)]
    # Two keys may print alike, such as 1 and "1".
    if len(dict(named)) != len(named):
        raise ValueError("two leaves of the tree have the same name")
    return dict(named)


def leaf_names(tree: Any) -> tuple[str, ...]:
    """Return the names of a tree's leaves in the order of `jax.tree.leaves`.

    >>> leaf_names({"stem": {"kernel": 1.0, "bias": 2.0}})
    ('stem/bias', 'stem/kernel')
    """
    return tuple(named_leaves(tree))


def replace_leaves(tree: TreeT, leaves: Mapping[str, Any]) -> TreeT:
    """Return a tree with other leaves, which are given by name.

    >>> replace_leaves({"stem": {"kernel": 1.0}}, {"stem/kernel": 5.0})
    {'stem': {'kernel': 5.0}}
    """
    return jax.tree.unflatten(
        jax.tree.structure(tree), [leaves[name] for name in named_leaves(tree)]
    )


def init_ema(decay_limit: float, params: Any, stats: Any) -> Any:
    """Return the average before the first step, or None without one."""
    if not decay_limit:
        return None
    # Copies: a step donates its state, and a buffer can be donated only once.
    return jax.tree.map(jnp.copy, {"params": params, "stats": stats})


def update_ema(
    ema: Any, decay_limit: float, step: jax.Array, params: Any, stats: Any
) -> Any:
    """Return the average after a step, or None without one.

    Args:
        ema: the average before.
        decay_limit: share of the old average in the new, after many steps.
        step: steps done, int32 [].
        params: parameters after the step.
        stats: running statistics after the step.
    """
    if ema is None:
        return None

    # The smaller decay of the first steps forgets the random initial weights; it is
    # that of TensorFlow's ExponentialMovingAverage.
    def move(old: jax.Array, new: jax.Array) -> jax.Array:
        # Counters and the like have no average.
        if not jnp.issubdtype(old.dtype, jnp.inexact):
            return new
        t = step.astype(real_dtype(old.dtype))
        share = 1 - jnp.minimum(decay_limit, (1 + t) / (10 + t))
        return old + share * (new - old)

    # Running statistics are averaged too: they are of the activations of those weights.
    return jax.tree.map(move, ema, {"params": params, "stats": stats})
