"""The train state: parameters, statistics, optimizer state and step count."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
from flax import nnx

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
    """Trainable leaves, an `nnx.State` of `nnx.Param`."""
    stats: Any
    """Running statistics, an `nnx.State` of `nnx.BatchStat`."""
    opt: Any
    """State of the optax optimizer."""
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
    named = {}
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        is_variable = isinstance(leaf, nnx.Variable)
        named[name] = jax.tree.leaves(leaf)[0] if is_variable else leaf
    # Two keys may print alike, such as 1 and "1".
    if len(named) != len(paths):
        raise ValueError("two leaves of the tree have the same name")
    return named


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
        jax.tree.structure(tree), [leaves[name] for name in leaf_names(tree)]
    )
