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

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxdist.collectives.compress.exact import ExactAllReduce
from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    AllReduceResult,
    Axes,
    ReduceScatterAllReduce,
)
from jaxdist.collectives.registry import (
    ALL_REDUCE_ALGORITHMS,
    AutoAlgorithm,
    resolve_algorithm,
)
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput, JaxdistWarning, did_you_mean


def bind_primitive(
    primitive: Primitive,
    leaves: list[jax.Array],
    state: list[jax.Array],
    method: AllReduceAlgorithm,
    axes: Axes,
) -> list[jax.Array]:
    """Bind a primitive to arrays that vary along the axes, where that is checked."""
    varying = []
    for x in leaves:
        # Unchecked, nothing is said to vary, and the cast changes nothing.
        known = jax.typeof(x).manual_axis_type.varying
        missing = tuple(a for a in axes if a not in known)
        varying.append(lax.pcast(x, missing, to="varying") if missing else x)
    # Arrays, then state and step: `count` says how many are arrays.
    return primitive.bind(
        *varying, *state, method=method, axes=axes, count=len(leaves), mapped=0
    )


@functools.cache
def all_reduce_primitive(name: str) -> Primitive:
    """Return the primitive of an algorithm: sums, contributions and state."""
    # Made once: jax tells primitives apart by identity.
    return _primitive(f"psum_{name}", _reduced, _reduced_types, _reduced_tangents)


@functools.cache
def reduce_scatter_primitive(name: str) -> Primitive:
    """Return the primitive of an algorithm's reduce-scatter."""
    return _primitive(
        f"psum_scatter_{name}", _scattered, _scattered_types, _scattered_tangents
    )


def _primitive(
    name: str,
    run: Callable[..., Any],
    types: Callable[..., Any],
    tangents: Callable[..., Any],
) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = True
    # Lowered by tracing the same function, so that no backend needs code of its own.
    primitive.def_impl(run)
    primitive.def_abstract_eval(types)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)

    def jvp(primals: Any, given: Any, **params: Any) -> Any:
        outs = primitive.bind(*primals, **params)
        # A zero tangent of one array must still be summed with those of the others.
        moved = [
            ad.instantiate_zeros(t) if isinstance(t, ad.Zero) else t
            for t in given[: params["count"]]
        ]
        return outs, tangents(outs, moved, params["axes"])

    ad.primitive_jvps[primitive] = jvp
    return primitive


def _reduced(
    *arrays: jax.Array, method: AllReduceAlgorithm, axes: Axes, count: int, mapped: int
) -> list[jax.Array]:
    """Sum in at least float32, for every index of the leading mapped dims."""

    def run(*operands: jax.Array) -> list[jax.Array]:
        leaves, (*memory, step) = operands[:count], operands[count:]
        # One dtype for all, since an algorithm may see them as one vector.
        used = functools.reduce(
            jnp.promote_types, (accumulation_dtype(x.dtype) for x in leaves)
        )
        full = [x.astype(used) for x in leaves]
        found = method.all_reduce(full, memory, step, axes)
        back = zip(
            (*found.total, *found.contributions), (*leaves, *leaves), strict=True
        )
        return [*(y.astype(x.dtype) for y, x in back), *found.state]

    return _mapped(run, mapped)(*arrays)


def _reduced_types(*arrays: Any, axes: Axes, count: int, **_: Any) -> list[Any]:
    """Say that sums and state are the same along the axes, contributions not."""
    leaves, memory = arrays[:count], arrays[count:-1]
    summed = []
    for x in leaves:
        varying = frozenset(x.mat.varying - set(axes))
        summed.append(x.update(manual_axis_type=x.mat.update(varying=varying)))
    # State is computed from the sums, so it varies as they do.
    kept = [x.update(manual_axis_type=summed[0].mat) for x in memory]
    return [*summed, *leaves, *kept]


def _reduced_tangents(outs: Any, given: list[jax.Array], axes: Axes) -> list[Any]:
    rest = outs[2 * len(given) :]
    # Straight-through: the tangent of a compressed sum is that of the exact one. State
    # has none.
    return [
        *lax.psum(given, axes),
        *given,
        *(ad.Zero(jax.typeof(x).to_tangent_aval()) for x in rest),
    ]


def _scattered(
    x: jax.Array,
    step: jax.Array,
    *,
    method: ReduceScatterAllReduce,
    axes: Axes,
    count: int,
    mapped: int,
) -> list[jax.Array]:
    def run(x: jax.Array, step: jax.Array) -> list[jax.Array]:
        # A row for each device, in rank order.
        rows = x.astype(accumulation_dtype(x.dtype)).reshape(lax.axis_size(axes), -1)
        part, _ = method.reduce_scatter(rows, step, axes)
        return [part.reshape(-1, *x.shape[1:]).astype(x.dtype)]

    return _mapped(run, mapped)(x, step)


def _scattered_types(
    x: Any, _: Any, *, axes: Axes, mapped: int, **__: Any
) -> list[Any]:
    shape = list(x.shape)
    shape[mapped] //= lax.axis_size(axes)
    return [x.update(shape=tuple(shape))]


def _scattered_tangents(outs: Any, given: list[jax.Array], axes: Axes) -> list[Any]:
    return [lax.psum_scatter(given[0], axes, tiled=True)]


def _batched(
    primitive: Primitive,
    arrays: Sequence[Any],
    dims: Sequence[Any],
    *,
    mapped: int,
    **params: Any,
) -> Any:
    """Move the mapped dim to the front of all operands; the body maps itself."""
    size = next(x.shape[d] for x, d in zip(arrays, dims) if d is not None)
    front = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(arrays, dims)
    ]
    outs = primitive.bind(*front, mapped=mapped + 1, **params)
    return outs, [0] * len(outs)


def _mapped(run: Callable[..., Any], times: int) -> Callable[..., Any]:
    for _ in range(times):
        run = jax.vmap(run)
    return run


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
        # Inside a trace nothing is measured: all hosts would have to at this moment.
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
        # The step, of which a scatter that is called by itself keeps no count.
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
