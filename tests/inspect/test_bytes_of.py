"""Bytes of anybody's jitted step: as written and as this backend moves them."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdist
from jaxdist.core.errors import BadInput


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=jax.devices()[:4])


@pytest.fixture
def step(mesh):
    def local(x):
        return lax.psum(x, "data")

    each = jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P())
    return jax.jit(each)


def columns(found):
    return [(r.kind, r.axes, r.formula, r.stablehlo, r.compiled) for r in found.rows]


def test_sixteen_bits_are_written_and_the_processor_moves_thirty_two(step):
    found = jaxdist.bytes_of(step, jnp.zeros((8, 4), jnp.bfloat16))
    sent = 2 * 3 * 2 * 4 // 4  # 2 (g-1)/g of [2, 4] elements
    assert columns(found) == [("all-reduce", ("data",), None, 2 * sent, 4 * sent)]


def test_a_lowered_step_and_a_compiled_one(step):
    lowered = step.lower(jnp.zeros((8, 4)))
    (row,) = jaxdist.bytes_of(lowered).rows
    assert (row.stablehlo, row.compiled) == (48, 48)
    (row,) = jaxdist.bytes_of(lowered.compile()).rows
    assert (row.stablehlo, row.compiled) == (None, 48)


def test_a_step_of_flax(mesh):
    model = nnx.Linear(3, 5, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(model, x):
        def loss(model):
            return (model(x) ** 2).mean()

        return nnx.grad(loss)(model)

    x = jax.ShapeDtypeStruct(
        (8, 3), jnp.float32, sharding=NamedSharding(mesh, P("data"))
    )
    found = jaxdist.bytes_of(step, model, x)
    assert found.mesh == {"data": 4}
    assert [r.kind for r in found.rows] == ["all-reduce"]
    assert found.rows[0].stablehlo == 0  # the partitioner's own
    assert found.rows[0].compiled >= 2 * 3 * (3 * 5 + 5) * 4 // 4


def test_what_is_not_jitted_is_refused():
    with pytest.raises(BadInput, match="not jitted"):
        jaxdist.bytes_of(lambda x: x, 1.0)
