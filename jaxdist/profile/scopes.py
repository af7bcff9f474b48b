"""Scopes: a network whose every operation carries the path of its layer."""

from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxdist.core.array_tags import LAYER_OUTPUT


def modules_by_path(network: nnx.Module) -> dict[str, nnx.Module]:
    """List the modules inside a network by path."""
    every = ((".".join(map(str, p)), m) for p, m in nnx.iter_modules(network) if p)
    return dict(every)


def add_layer_scopes(network: nnx.Module, output_bytes: dict[str, int]) -> None:
    """Make every call of a module open a scope of its path, and name what it makes.

    Args:
        network: changed in place; a fresh merge inside a trace.
        output_bytes: is filled with the bytes each module returns, as it is called.
    """
    seen: list[Any] = []  # arrays, not their ids: an id may be used again
    for path, module in modules_by_path(network).items():
        if callable(module):
            _wrap_in_scope(module, path, output_bytes, seen)


def _wrap_in_scope(
    module: nnx.Module, path: str, returned: dict[str, int], seen: list[Any]
) -> None:
    """Give this one module a class of its own: Python looks `__call__` up there."""
    kind: Any = type(module)

    def scoped(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.extend(jax.tree.leaves((args, kwargs)))
        with jax.named_scope(path):
            y = kind.__call__(self, *args, **kwargs)
            y = jax.tree.map(lambda leaf: _tag_output(leaf, seen), y)
        arrays = [leaf for leaf in jax.tree.leaves(y) if isinstance(leaf, jax.Array)]
        returned[path] = sum(leaf.size * leaf.dtype.itemsize for leaf in arrays)
        return y

    own = type(kind.__name__, (kind,), {"__call__": scoped})
    object.__setattr__(module, "__class__", own)


def _tag_output(leaf: Any, seen: list[Any]) -> Any:
    """Name an array that is new: not an input, nor what a layer inside returned."""
    if not isinstance(leaf, jax.Array) or any(leaf is old for old in seen):
        return leaf
    named = checkpoint_name(leaf, LAYER_OUTPUT)
    seen.append(named)
    return named
