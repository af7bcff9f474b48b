"""The psum family: sums over mesh axes as JAX primitives, exact or compressed.

    psum(x, "data", "int8")                  the sum, the same on every device
    psum(x, "data", AutoAlgorithm(link=...)) by the fastest algorithm on a measured link
    psum_scatter(x, "data", "int8")          this device's part of it
    all_reduce(xs, "data", "int8")           the sum, and this device's contribution

Each is a primitive of its own, `psum_int8` in the jaxpr. JAX takes the result of an
all-gather for different on every device; a primitive can say that the sum built of it
is the same on all, so it may leave a `shard_map` that checks this (`check_vma`).
Tangents go through `lax.psum`: a compressed sum has the gradient of the exact one
(straight-through estimator; Bengio et al. 2013, arXiv:1308.3432).
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
from jaxdist.core.errors import BadInput, JaxdistWarning, did_you_mean

AlgorithmLike = str | AllReduceAlgorithm | AutoAlgorithm


def psum(x: Any, axis: str | Sequence[str], algorithm: AlgorithmLike = "exact") -> Any:
    """Sum over mesh axes, inside a `shard_map` that is manual over them.

    Args:
        x: an array or a tree of arrays; floats, unless the sum is exact. A compressed
            sum sees a tree as one vector.
        axis: an axis, or several from the outside in.
        algorithm: a name, an algorithm with its own settings, or `AutoAlgorithm`, which
            chooses one by measurements; the name `auto` leaves it to the backend.

    Raises:
        BadInput: no such axis or algorithm, or a dtype that it cannot sum.

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
    """Sum arrays over mesh axes, and return this device's contribution to the sums.

    Args:
        leaves: this device's arrays.
        axis: an axis, or several from the outside in.
        algorithm: as of `psum`.
        state: of the last call; none: `init_state`.
        step: number of calls before: random indices follow from it.

    Raises:
        BadInput: as `psum`.
    """
    given, axes = list(leaves), check_axes(axis)
    if algorithm == "auto":
        algorithm = AutoAlgorithm()
    if isinstance(algorithm, AutoAlgorithm):
        along = {a: lax.axis_size(a) for a in axes if lax.axis_size(a) > 1}
        filled = [x for x in given if x.size]
        dtype = filled[0].dtype if filled else jnp.float32
        method = algorithm.select([x.shape for x in filled], dtype, along)
    else:
        method = resolve_algorithm(algorithm)
    check_dtypes(method, given)
    # An axis of one device has nothing to sum, so it takes no collective.
    real = tuple(a for a in axes if lax.axis_size(a) > 1)
    if not real and not isinstance(method, ExactAllReduce):
        warnings.warn(
            f"psum by {method.name} over {', '.join(axes)}: one device, nothing to do",
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
    # The body is traced only when it is compiled: errors about shapes come from here.
    tuple(method.payloads([given[i].shape for i in sized], given[0].dtype, sizes))
    found = bind_primitive(
        all_reduce_primitive(method.name),
        [given[i] for i in sized],
        [*kept, jnp.asarray(step, jnp.int32)],
        method,
        real,
    )
    # Arrays without elements are left out of the sum, and put back here.
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
        x: an array; the devices along the axes divide `dim`.
        axis: an axis, or several from the outside in.
        algorithm: a name, or an algorithm with a reduce-scatter.
        dim: the dim that is scattered.

    Raises:
        BadInput: as `psum`; an algorithm without a reduce-scatter; a dim that does not
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
            values=f"algorithm = {method.name}; these can: {', '.join(able)}",
            remedy='algorithm="int8"',
        )
    if devices == 1 or not x.size:
        return x
    # The primitive scatters the first dim, so that rows are contiguous.
    first = jnp.moveaxis(x, dim, 0)
    (part,) = bind_primitive(
        reduce_scatter_primitive(method.name),
        [first],
        [jnp.zeros((), jnp.int32)],
        method,
        axes,
    )
    return jnp.moveaxis(part, 0, dim)


def check_axes(axis: str | Sequence[str]) -> Axes:
    """Return the axes as a tuple.

    Raises:
        BadInput: there is none of this name, or it is not manual.
    """
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    mesh = jax.sharding.get_abstract_mesh()
    for name in axes:
        if name not in mesh.manual_axes:
            known = ", ".join(map(str, mesh.manual_axes)) or "none"
            near = did_you_mean(name, map(str, mesh.manual_axes))
            raise BadInput(
                f"no manual mesh axis {name} here",
                rule="sums run inside jax.shard_map, over axes of its mesh",
                values=f"axis = {name}; manual axes here: {known}",
                remedy=f'"{near}"' if near else "call it inside jax.shard_map",
            )
    return axes


def check_dtypes(algorithm: AllReduceAlgorithm, leaves: Sequence[jax.Array]) -> None:
    """Refuse dtypes that an algorithm cannot sum.

    Raises:
        BadInput: integers of fewer than 32 bits, which wrap or which a backend cannot
            move, or integers where the sum is not exact.
    """
    for x in leaves:
        floats = jnp.issubdtype(x.dtype, jnp.floating)
        if not floats and not isinstance(algorithm, ExactAllReduce):
            raise BadInput(
                f"{algorithm.name} sums floats only",
                rule="integers are summed exactly",
                values=f"dtype = {x.dtype}",
                remedy='algorithm="exact"',
            )
        if jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 32:
            raise BadInput(
                f"a sum of {x.dtype} could overflow",
                rule="integers of at least 32 bits are summed: narrower ones wrap "
                "without a word, and int2 stops the process on CPU",
                values=f"dtype = {x.dtype}",
                remedy="x.astype(jnp.int32)",
            )
        if floats and x.dtype.itemsize < 2:
            raise BadInput(
                f"a sum of {x.dtype} would be rounded at every addition",
                rule="floats of at least 16 bits are summed",
                values=f"dtype = {x.dtype}",
                remedy='x.astype(jnp.float32), algorithm="fp8"',
            )
