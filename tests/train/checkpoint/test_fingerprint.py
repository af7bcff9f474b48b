"""A fingerprint depends on every bit and every place, and on no layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.train.checkpoint.checksum import (
    _CHUNK_ELEMENTS,
    fingerprint,
    local_fingerprint,
    sum_over_hosts,
)

DTYPES = ("float32", "float64", "bfloat16", "float16", "int32", "uint8", "bool", "int64", "complex64", "complex128", "float8_e4m3fn")  # fmt: skip
SPECS = (P(), P("a"), P(None, "b"), P("b", "a"), P(("a", "b")), P(None, None, "a"))


def random_array(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


def mesh(a, b):
    devices = np.array(jax.devices()[: a * b]).reshape(a, b)
    return Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def by_definition(array):
    """The formula of the module, one word at a time, in Python integers."""
    width = min(array.dtype.itemsize, 4)
    words = np.ascontiguousarray(array).reshape(-1).view(f"u{width}").tolist()
    total = 0
    for place, word in enumerate(words, start=1):
        x = (word + place * 0x9E3779B9) % 2**32
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        total += x ^ x >> 16
    return total % 2**32


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_what_its_definition_says(dtype):
    array = random_array((3, 4, 5), dtype)
    assert fingerprint(array) == by_definition(array)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 0, 3), (1, 1, 1)])
def test_the_definition_holds_for_odd_shapes(shape):
    array = random_array(shape, "float32")
    assert fingerprint(array) == by_definition(array)


@pytest.mark.parametrize(
    "shape",
    [
        (3 * _CHUNK_ELEMENTS + 5,),
        (5, _CHUNK_ELEMENTS),
        (3, 1, 2 * _CHUNK_ELEMENTS),
        (2 * _CHUNK_ELEMENTS, 3),
        (2, 300, 300),
    ],
)
def test_cutting_into_pieces_changes_nothing(shape):
    array = random_array(shape, "float32")
    assert fingerprint(array) == fingerprint(array.reshape(-1))
    assert fingerprint(array.T) == fingerprint(np.ascontiguousarray(array.T))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_no_layout_changes_it(dtype, spec):
    array = random_array((16, 8, 8), dtype)
    with jax.enable_x64(True):
        for shape in ((4, 4), (8, 1), (4, 2), (1, 2), (1, 1)):
            placed = jax.device_put(array, NamedSharding(mesh(*shape), spec))
            assert local_fingerprint(placed) == fingerprint(array)


def test_one_host_adds_nothing_to_its_shares():
    shares = np.array([1, 2**32 - 1], np.uint32)
    assert (sum_over_hosts(shares) == shares).all()


@given(
    dtype=st.sampled_from([d for d in DTYPES if d != "bool"]),
    shape=st.lists(st.integers(1, 5), max_size=3),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_every_single_bit_flip_is_seen(dtype, shape, seed, data):
    array = random_array(shape, dtype, seed)
    raw = bytearray(array.tobytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    flipped = np.frombuffer(bytes(raw), array.dtype).reshape(shape)
    assert fingerprint(flipped) != fingerprint(array)


@given(
    values=st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=40),
    data=st.data(),
)
def test_swapped_elements_are_seen(values, data):
    array = np.array(values, np.float32)
    one, other = (data.draw(st.integers(0, len(values) - 1)) for _ in range(2))
    swapped = array.copy()
    swapped[[one, other]] = array[[other, one]]
    same = swapped.tobytes() == array.tobytes()
    assert (fingerprint(swapped) == fingerprint(array)) == same


def test_a_value_and_its_negative_swapped_are_seen():
    array = np.array([1.5, -1.5, 2.5, -2.5], np.float32)
    assert fingerprint(array) != fingerprint(-array)
    assert fingerprint(array[[1, 0, 2, 3]]) != fingerprint(array)


def test_zeros_at_the_end_count():
    assert fingerprint(np.zeros(3, np.float32)) != fingerprint(np.zeros(4, np.float32))


def test_the_sign_of_zero_and_the_payload_of_nan_count():
    zeros, nans = (
        np.array([0.0, -0.0]),
        np.array([0x7FF8000000000001, 0x7FF8000000000002]),
    )
    assert fingerprint(zeros[:1]) != fingerprint(zeros[1:])
    assert fingerprint(nans[:1].view(float)) != fingerprint(nans[1:].view(float))
