"""What a training step changes: parameters, statistics, optimizer state, step count."""

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
    """Steps done since the very start: int32 []."""
    params: Any
    """Trainable leaves, an `nnx.State` of `nnx.Param`."""
    stats: Any
    """Running statistics, an `nnx.State` of `nnx.BatchStat`."""
    opt: Any
    """State of the optax optimizer."""
    average: Any = None
    """Moving averages, {"params", "stats"}, where they are kept; else None."""
    feedback: Any = None
    """What compressed gradients left on the devices, where they are; else None."""
    replicas: Any = None
    """What replicas have of their own where there is an outer loop; else None. Then
    `params` and `stats` are the outer ones, and `opt` and `feedback` are in here.
    """

    @property
    def evaluated(self) -> tuple[Any, Any]:
        """Parameters and statistics that are evaluated: the averages where kept."""
        if self.average is None:
            return self.params, self.stats
        return self.average["params"], self.average["stats"]


def named_leaves(tree: Any) -> dict[str, Any]:
    """Give each leaf its name: the path from the root, with slashes.

    Args:
        tree: any pytree; the value inside an `nnx.Variable` has the variable's name.

    >>> named_leaves({"stem": {"kernel": 1.0, "bias": 2.0}, "steps": [3]})
    {'stem/bias': 2.0, 'stem/kernel': 1.0, 'steps/0': 3}
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)
    named = {_path_name(path): _variable_value(leaf) for path, leaf in paths}
    if len(named) != len(paths):
        raise ValueError("two leaves of the tree have the same name")
    return named


def leaf_names(tree: Any) -> tuple[str, ...]:
    """Name the leaves of a tree in the order of `jax.tree.leaves`.

    >>> leaf_names({"stem": {"kernel": 1.0, "bias": 2.0}})
    ('stem/bias', 'stem/kernel')
    """
    return tuple(named_leaves(tree))


def replace_leaves(tree: TreeT, leaves: Mapping[str, Any]) -> TreeT:
    """Put other leaves into a tree, by name.

    >>> replace_leaves({"stem": {"kernel": 1.0}}, {"stem/kernel": 5.0})
    {'stem': {'kernel': 5.0}}
    """
    return jax.tree.unflatten(
        jax.tree.structure(tree), [leaves[name] for name in leaf_names(tree)]
    )


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _variable_value(leaf: Any) -> Any:
    return jax.tree.leaves(leaf)[0] if _is_variable(leaf) else leaf


def _path_name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
