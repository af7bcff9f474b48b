"""What the psum family refuses, and how it appears in a program."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.compress.codec import BlockQuantizationCodec
from jaxdist.collectives.compress.hierarchical import HierarchicalAllReduce
from jaxdist.collectives.compress.method import FlatAllReduce
from jaxdist.collectives.compress.powersgd import (
    PowerSGD,
    orthonormalize,
    transpose_matmul,
)
from jaxdist.collectives.compress.shared_top_k import SharedTopK
from jaxdist.collectives.compress.sparse import OkTopK
from jaxdist.collectives.compress.top_k_allgather import TopKAllGather
from jaxdist.collectives.compress.top_k_codec import TopKCodec
from jaxdist.collectives.primitives import all_reduce, psum, psum_scatter
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS
from jaxdist.core.errors import BadInput


def mapped(run, devices=4, dtype=jnp.float32, shape=(8, 8)):
    mesh = jax.make_mesh(
        (devices,),
        ("data",),
        devices=jax.devices()[:devices],
        axis_types=(AxisType.Auto,),
    )
    whole = jax.ShapeDtypeStruct((devices, *shape), dtype)
    shared = jax.shard_map(
        lambda x: run(x[0]),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(),
        check_vma=False,
    )
    return shared, whole


@pytest.mark.parametrize(
    "via",
    [name for name in ALL_REDUCE_ALGORITHMS if name not in ("exact", "hierarchical")],
)
def test_each_sum_is_a_primitive_of_its_own_name(via):
    run, x = mapped(lambda v: psum(v, "data", via))
    assert f"psum_{via}[" in str(jax.make_jaxpr(run)(x))


@pytest.mark.parametrize(
    ("run", "dtype", "said"),
    [
        (lambda v: psum(v, "dat"), "float32", '"data"'),
        (lambda v: psum(v, "data", "int9"), "float32", 'algorithm="int8"'),
        (lambda v: psum(v, "data", "int8"), "int32", 'algorithm="exact"'),
        (lambda v: psum(v, "data"), "int8", "astype(jnp.int32)"),
        (lambda v: psum(v, "data"), "int2", "stops the process"),
        (lambda v: psum(v, "data"), "uint4", "astype(jnp.int32)"),
        (lambda v: psum(v, "data"), "float8_e4m3fn", 'algorithm="fp8"'),
        (lambda v: psum(v, "data", PowerSGD(rank=9)), "float32", "rank=8"),
        (lambda v: psum(v, "data", "hierarchical"), "float32", '("data", "fsdp")'),
        (lambda v: psum_scatter(v[:7], "data"), "float32", "pad it to 8"),
        (lambda v: psum_scatter(v, "data", "top_k"), "float32", 'algorithm="int8"'),
    ],
)
def test_what_cannot_be_summed_is_refused_with_a_remedy(run, dtype, said):
    shared, x = mapped(run, dtype=dtype)
    with pytest.raises(BadInput) as error:
        jax.eval_shape(shared, x)
    assert said in str(error.value)


@pytest.mark.parametrize("density", [0.0, -0.1, 1.5])
def test_a_density_out_of_range_is_refused(density):
    with pytest.raises(BadInput, match="0 < density <= 1"):
        TopKCodec(density=density)


@pytest.mark.parametrize(
    "settings", [{"dtype": "int2"}, {"block_size": 3}, {"block_size": 0}]
)
def test_blocks_that_do_not_travel_are_refused(settings):
    with pytest.raises(BadInput):
        BlockQuantizationCodec(**settings)


LONG = [
    name
    for name, method in ALL_REDUCE_ALGORITHMS.items()
    if isinstance(method, FlatAllReduce) and name != "hierarchical"
]


@pytest.mark.parametrize("via", LONG)
def test_a_vector_that_int32_cannot_index_is_refused(via):
    """By shapes alone: an offset that wrapped would sum other elements."""
    run, x = mapped(lambda v: psum(v, "data", via), shape=(2, 2**30))
    with pytest.raises(BadInput, match="2,147,483,647 at most") as refused:
        jax.eval_shape(run, x)
    assert "plan.reduce.algorithm=exact" in refused.value.remedy
    run, x = mapped(lambda v: psum(v, "data", via), shape=(2**31 - 2**26,))
    assert jax.eval_shape(run, x).shape == (2**31 - 2**26,)
    exact, x = mapped(lambda v: psum(v, "data"), shape=(2, 2**30))
    assert jax.eval_shape(exact, x).shape == (2, 2**30)


def test_empty_slots_have_indices_that_int32_holds():
    """Those of a sparse sum lie beyond the vector, and would wrap sooner."""
    half = TopKCodec(density=0.5)
    for method in (
        TopKAllGather(codec=half),
        SharedTopK(density=0.5),
        OkTopK(codec=half),
        HierarchicalAllReduce(inter_host=TopKAllGather(codec=half)),
    ):
        sizes = {"replica": 2, "data": 2}
        for elements, fits in ((2**30, True), (2**32, False)):
            assert fits == (method.index_count(elements, sizes) < 2**31)
    sparse = TopKAllGather(codec=half)
    sizes, shape = {"data": 4}, (3, 2**29)
    with pytest.raises(BadInput, match="2,415,919,104 indices"):
        sparse.payloads([shape], "float32", sizes)
    with pytest.raises(BadInput, match="2,415,919,104 indices"):
        jax.eval_shape(half.encode, jax.ShapeDtypeStruct((1, 3 * 2**29), "float32"))


def test_an_axis_of_one_device_is_said_to_do_nothing():
    run, x = mapped(lambda v: psum(v, "data", "int8"), devices=1)
    with pytest.warns(UserWarning, match="one device, nothing to do"):
        y = jax.jit(run)(jnp.ones(x.shape))
    assert (y == 1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(mapped(lambda v: psum(v, "data"), devices=1)[0])(jnp.ones(x.shape))


def test_a_tree_comes_back_as_a_tree():
    run, x = mapped(lambda v: psum({"a": v, "b": (v[0], v[0, 0])}, "data", "bf16"))
    out = jax.jit(run)(jnp.ones(x.shape))
    assert jax.tree.map(lambda y: y.shape, out) == {"a": (8, 8), "b": ((8,), ())}
    assert (out["a"] == 4).all()


def test_power_learns_the_matrix_from_step_to_step():
    """A matrix of rank 2 is found by rank 2 after a step, whatever Q began with."""
    rng = np.random.default_rng(0)
    m = jnp.asarray(
        rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30)), jnp.float32
    )

    def run(_):
        memory, errors = None, []
        for step in range(3):
            found = all_reduce([m], "data", PowerSGD(rank=2), memory, step)
            memory = found.state
            errors.append(jnp.abs(found.total[0] - 4 * m).max())
        return jnp.stack(errors)

    shared, x = mapped(run)
    assert jax.jit(shared)(jnp.ones(x.shape)).max() < 1e-4


def test_residuals_fed_back_are_sent_in_the_end():
    """Error feedback: after many steps the mean of what was sent is the gradient."""
    g = jnp.asarray(np.random.default_rng(0).standard_normal(500), jnp.float32)

    def mean_error(via):
        def run(_):
            def step(carry, i):
                left, sums = carry
                found = all_reduce([g + left], "data", via, step=i)
                return (g + left - found.contributions[0], sums + found.total[0]), None

            zero = jnp.zeros_like(g)
            (_, sums), _ = jax.lax.scan(step, (zero, zero), jnp.arange(200))
            return jnp.linalg.norm(sums / 800 - g) / jnp.linalg.norm(g)

        shared, x = mapped(run)
        return float(jax.jit(shared)(jnp.ones(x.shape)))

    for via in ("int4", TopKCodec(density=0.1)):
        method = (
            ALL_REDUCE_ALGORITHMS["int4"]
            if via == "int4"
            else ALL_REDUCE_ALGORITHMS["top_k"].__class__(codec=via)
        )
        assert mean_error(method) < 0.1


def test_a_product_in_tiles_is_the_product():
    rng = np.random.default_rng(0)
    for rows in (5, 255, 256, 700):
        m, p = (
            jnp.asarray(rng.standard_normal((rows, n)), jnp.float32) for n in (33, 3)
        )
        assert jnp.abs(transpose_matmul(m, p) - m.T @ p).max() < 1e-3


def test_columns_are_orthonormal_and_dependent_ones_vanish():
    thin = jnp.asarray(np.random.default_rng(0).standard_normal((50, 3)), jnp.float32)
    thin = thin.at[:, 2].set(thin[:, 0] - 2 * thin[:, 1])
    q = orthonormalize(thin)
    assert jnp.abs(q.T @ q - jnp.diag(jnp.array([1.0, 1.0, 0.0]))).max() < 1e-5
