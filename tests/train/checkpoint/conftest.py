"""A small state with every kind of leaf, and the layouts it is saved and restored in."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.train.state import TrainState, named_leaves


class Net(nnx.Module):
    def __init__(self, rngs, width):
        self.stem = nnx.Conv(1, width, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, 16, rngs=rngs, param_dtype=jnp.bfloat16)


def make_state(step=0, *, width=16, seed=0):
    net = Net(nnx.Rngs(seed + 100 * step), width)
    _, params, stats = nnx.split(net, nnx.Param, nnx.BatchStat)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    extra = {
        "key": jax.random.key(seed),
        "keys": jax.random.split(jax.random.key(seed), 16),
    }
    extra |= {"flags": jnp.arange(16) % 3 == 0, "none": jnp.zeros((0, 4))}
    opt = (tx.init(params), extra)
    return TrainState(step=jnp.int32(step), params=params, stats=stats, opt=opt)


def sharding(leaf, count, spread):
    """Divide the last dim that divides, if the state is to be spread over devices."""
    mesh = Mesh(np.array(jax.devices()[:count]), ("data",), axis_types=(AxisType.Auto,))
    parts = [None] * leaf.ndim
    if spread and leaf.ndim and leaf.shape[-1] and leaf.shape[-1] % count == 0:
        parts[-1] = "data"
    return NamedSharding(mesh, P(*parts))


def placed(state, count, *, spread=True):
    return jax.tree.map(lambda x: jax.device_put(x, sharding(x, count, spread)), state)


def abstract(state, count, *, spread=True):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=sharding(x, count, spread)
        ),
        state,
    )


def bits(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    other = named_leaves(other)
    for name, leaf in named_leaves(one).items():
        assert leaf.dtype == other[name].dtype, name
        assert leaf.shape == other[name].shape, name
        assert bits(leaf) == bits(other[name]), name


@pytest.fixture(scope="session")
def kit():
    return SimpleNamespace(
        make_state=make_state,
        placed=placed,
        abstract=abstract,
        assert_same_bits=assert_same_bits,
    )
