"""Shards are joined to the whole, and sums dealt out are the parts of the whole sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.registry import make_stateless_compressor
from jaxdist.collectives.sharded_leaves import (
    all_gather,
    local_shard,
    reduce_scatter,
    reduce_scatter_array,
)

SHAPES = ((4, 6), (8,), (3, 8), (4,), (5,))
DIMS = (0, 0, 1, 0, None)
SPECS = (P("fsdp"), P("fsdp"), P(None, "fsdp"), P("fsdp"), P())


def leaves(dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.integers(-8, 8, shape), dtype) for shape in SHAPES]


def on_four(run, arrays, specs, outs):
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=(specs,), out_specs=outs, check_vma=False
    )
    return jax.jit(mapped)(arrays)


@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_joining_what_was_cut_gives_the_whole(dtype, inner):
    whole = leaves(dtype)
    again = on_four(
        lambda x: all_gather(local_shard(x, DIMS, "fsdp"), DIMS, "fsdp", inner=inner),
        whole,
        P(),
        P(),
    )
    for a, b in zip(again, whole, strict=True):
        assert a.dtype == b.dtype
        assert (a == b).all()


@pytest.mark.parametrize("inner", [1, 2])
def test_encoded_matrices_arrive_in_their_order(inner):
    rows = jnp.repeat(jnp.arange(4.0), 64).reshape(4, 64)
    codec = make_stateless_compressor("int8", 64)[1]
    (whole,) = on_four(
        lambda x: all_gather([x], [0], "fsdp", codec, inner), rows, P("fsdp"), [P()]
    )
    np.testing.assert_allclose(whole, rows, atol=0.05)


@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dealing_gives_the_parts_of_the_sum(dtype, inner):
    whole = leaves(dtype)
    dealt = on_four(
        lambda x: reduce_scatter(x, DIMS, "fsdp", inner=inner), whole, P(), list(SPECS)
    )
    for a, b, dim in zip(dealt, whole, DIMS, strict=True):
        assert (a == (b if dim is None else 4 * b.astype(jnp.float32))).all()


@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("lanes", [1, 128])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dim_of_a_large_array_is_dealt(inner, lanes, dim):
    whole = jnp.arange(4 * 8 * 12, dtype=jnp.float32).reshape(4, 8, 12)
    spec = P(*("fsdp" if d == dim else None for d in range(3)))
    dealt = on_four(
        lambda x: reduce_scatter_array(x, "fsdp", dim, inner, lanes), whole, P(), spec
    )
    assert (dealt == 4 * whole).all()
