"""The psum family: sums over mesh axes as JAX primitives, exact or in fewer bytes.

    psum(x, "data", via="int8")             the sum, the same on every device
    psum(x, "data", via=Auto(link=...))     by the fastest way on a measured link
    psum_scatter(x, "data", via="int8")     this device's part of it
    reduce(xs, "data", via=..., ...)        the sum, and what this device put into it

Each is a primitive of its own, `psum_int8` in the jaxpr. JAX takes what an all-gather
brings for different on every device; a primitive can say that the sum built of it is
the same on all, so it may leave a `shard_map` that checks this (`check_vma`). Tangents
go through `lax.psum`: a compressed sum has the gradient of the exact one (straight
through; Bengio et al. 2013, arXiv:1308.3432).
"""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.autotune import AutoAlgorithm
from jaxdist.collectives.compress.exact import ExactAllReduce
from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    AllReduceResult,
    Axes,
    ReduceScatterAllReduce,
)
from jaxdist.collectives.primitive_binding import (
    all_reduce_primitive,
    bind_primitive,
    reduce_scatter_primitive,
)
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS, resolve_algorithm
from jaxdist.collectives.validation import check_axes, check_dtypes
from jaxdist.core.errors import BadInput, JaxdistWarning

AlgorithmLike = str | AllReduceAlgorithm | AutoAlgorithm


def psum(x: Any, axis: str | Sequence[str], algorithm: AlgorithmLike = "exact") -> Any:
    """Sum over mesh axes, inside a `shard_map` that is manual over them.

    Args:
        x: an array or a tree of arrays; floats, unless the sum is exact. A compressed
            sum sees a tree as one vector.
        axis: an axis, or several from the outside in.
        algorithm: a name, a method with settings of its own, or `AutoAlgorithm`, which
        chooses one by
            what was measured; the name `auto`, without that, leaves it to the backend.

    Raises:
        BadInput: no such axis or method, or numbers that it cannot sum.

    The sum is NaN where the exact one is not finite. Without error feedback what is not
    sent is lost: see `all_reduce`.
    """
    leaves, tree = jax.tree.flatten(x)
    return jax.tree.unflatten(tree, all_reduce(leaves, axis, algorithm).total)


def all_reduce(
    leaves: Sequence[jax.Array],
    axis: str | Sequence[str],
    algorithm: AlgorithmLike = "exact",
    state: Sequence[jax.Array] | None = None,
    step: jax.Array | int = 0,
) -> AllReduceResult:
    """Sum arrays over mesh axes, and say what this device put into the sums.

    Args:
        leaves: this device's arrays.
        axis: an axis, or several from the outside in.
        algorithm: as of `psum`.
        state: what the last call gave; none: `method.begin`.
        step: how often it was called before: random places follow from it.

    Raises:
        BadInput: as `psum`.
    """
    given, axes = list(leaves), check_axes(axis)
    method = _way(algorithm, given, axes)
    check_dtypes(method, given)
    real = tuple(a for a in axes if lax.axis_size(a) > 1)
    if not real and not isinstance(method, ExactAllReduce):
        warnings.warn(
            f"psum via {method.name} over {', '.join(axes)}: one device, nothing to do",
            JaxdistWarning,
            stacklevel=3,
        )
    kept = method.init_state([x.shape for x in given]) if state is None else list(state)
    sized = [i for i, x in enumerate(given) if x.size]
    if not real or not sized:
        return AllReduceResult(total=given, contributions=given, state=kept)
    if isinstance(method, ExactAllReduce):
        return method.all_reduce(given, kept, jnp.int32(0), real)
    sizes = {a: lax.axis_size(a) for a in real}
    # The body is traced when it is compiled; what it cannot do is refused here.
    tuple(method.payloads([given[i].shape for i in sized], given[0].dtype, sizes))
    found = bind_primitive(
        all_reduce_primitive(method.name),
        [given[i] for i in sized],
        [*kept, jnp.asarray(step, jnp.int32)],
        method,
        real,
    )
    total, sent = list(given), list(given)
    for place, i in enumerate(sized):
        total[i], sent[i] = found[place], found[place + len(sized)]
    return AllReduceResult(
        total=total, contributions=sent, state=found[2 * len(sized) :]
    )


def psum_scatter(
    x: jax.Array,
    axis: str | Sequence[str],
    algorithm: str | AllReduceAlgorithm = "exact",
    dim: int = 0,
) -> jax.Array:
    """Sum over mesh axes and keep this device's part.

    Args:
        x: an array; its dim is dealt out evenly over the devices along the axes.
        axis: an axis, or several from the outside in.
        algorithm: a name or a method that sums in rows.
        dim: which dim is dealt out.

    Raises:
        BadInput: as `psum`; a method without a scattering half; a dim that does not
            divide.
    """
    method, axes = resolve_algorithm(algorithm), check_axes(axis)
    check_dtypes(method, [x])
    devices = lax.axis_size(axes)
    if x.shape[dim] % devices:
        raise BadInput(
            "a dim is not dealt out evenly",
            rule="the dim divides by the devices along the axes",
            values=f"dim {dim} of {list(x.shape)}, {devices} devices along "
            f"{', '.join(axes)}",
            remedy=f"pad it to {-(-x.shape[dim] // devices) * devices}",
        )
    if isinstance(method, ExactAllReduce):
        return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)
    if not isinstance(method, ReduceScatterAllReduce):
        able = [
            name
            for name, m in ALL_REDUCE_ALGORITHMS.items()
            if isinstance(m, ExactAllReduce | ReduceScatterAllReduce)
        ]
        raise BadInput(
            f"{method.name} has no scattering half",
            rule="a sum is scattered where each device's part can be summed alone",
            values=f"via = {method.name}; these can: {', '.join(able)}",
            remedy='via="int8"',
        )
    if devices == 1 or not x.size:
        return x
    first = jnp.moveaxis(x, dim, 0)
    (part,) = bind_primitive(
        reduce_scatter_primitive(method.name),
        [first],
        [jnp.zeros((), jnp.int32)],
        method,
        axes,
    )
    return jnp.moveaxis(part, 0, dim)


def _way(
    via: AlgorithmLike, leaves: Sequence[jax.Array], axes: Axes
) -> AllReduceAlgorithm:
    """Return the method that sums these arrays."""
    if via == "auto":
        via = AutoAlgorithm()
    if not isinstance(via, AutoAlgorithm):
        return resolve_algorithm(via)
    sizes = {a: lax.axis_size(a) for a in axes if lax.axis_size(a) > 1}
    sized = [x for x in leaves if x.size]
    dtype = sized[0].dtype if sized else jnp.float32
    return via.select([x.shape for x in sized], dtype, sizes)
