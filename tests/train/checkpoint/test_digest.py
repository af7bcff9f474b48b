"""A digest of parameters says whether two models are the same, on any layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.train.checkpoint.checksum import params_digest

BASE = {
    "a": np.arange(32, dtype=np.float32).reshape(8, 4),
    "b": np.arange(32, 64, dtype=np.float32).reshape(8, 4),
}


def test_no_layout_changes_it():
    digests = {params_digest(BASE)}
    for count in (16, 8, 2, 1):
        mesh = Mesh(jax.devices()[:count], ("x",), axis_types=(AxisType.Auto,))
        for spec in (P(), P("x") if count <= 8 else P()):
            placed = jax.device_put(BASE, NamedSharding(mesh, spec))
            digests.add(params_digest(placed))
    assert len(digests) == 1


def flipped(array):
    bits = array.copy().view(np.uint32)
    bits[0, 0] ^= 1
    return bits.view(np.float32)


@pytest.mark.parametrize(
    "changed",
    [
        {**BASE, "a": flipped(BASE["a"])},
        {"a": BASE["b"], "b": BASE["a"]},
        {"a": BASE["a"], "c": BASE["b"]},
        {**BASE, "a": BASE["a"].reshape(4, 8)},
        {**BASE, "a": BASE["a"].view(np.int32)},
        {"a": BASE["a"]},
    ],
    ids=["one bit", "swapped leaves", "name", "shape", "dtype", "missing leaf"],
)
def test_any_change_changes_it(changed):
    assert params_digest(changed) != params_digest(BASE)


def test_the_order_of_keys_and_the_class_of_the_tree_do_not_count():
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)
    state = nnx.state(model, nnx.Param)
    plain = {"kernel": model.kernel[...], "bias": model.bias[...]}
    assert params_digest(state) == params_digest(plain)
    assert params_digest(dict(reversed(BASE.items()))) == params_digest(BASE)
