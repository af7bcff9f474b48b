"""Logits in slices say what whole logits say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.layers.logits_product import LogitsProduct, chunk_count
from jaxdist.train.logits import (
    UnsplitLogits,
    VocabParallelLogits,
    by_chunks,
    weighted_cross_entropy,
)
from jaxdist.train.objective import NextToken

LABELS = jnp.asarray([[0, 3, 4], [7, 5, 1]], jnp.int32)


def sliced(method, logits, *labels):
    """Call a method of `VocabParallelLogits` on slices of whole logits over four devices."""
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("tensor",))
    split = P(*(None,) * (logits.ndim - 1), "tensor")
    return jax.shard_map(
        method,
        mesh=mesh,
        in_specs=(split, *(P() for _ in labels)),
        out_specs=P(),
        check_vma=False,
    )(logits, *labels)


@pytest.fixture
def logits():
    with jax.enable_x64():
        yield 5 * jax.random.normal(jax.random.key(0), (2, 3, 8), jnp.float64)


def test_cross_entropy_is_that_of_whole_logits(logits):
    found = sliced(VocabParallelLogits().cross_entropy, logits, LABELS)
    np.testing.assert_allclose(
        found, UnsplitLogits().cross_entropy(logits, LABELS), rtol=1e-14
    )


def test_large_logits_do_not_overflow(logits):
    logits = logits + 1e4
    found = sliced(VocabParallelLogits().cross_entropy, logits, LABELS)
    np.testing.assert_allclose(
        found, UnsplitLogits().cross_entropy(logits, LABELS), rtol=1e-9
    )


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_what_is_not_finite_surfaces(bad, logits):
    found = sliced(
        VocabParallelLogits().cross_entropy, logits.at[0, 1, 6].set(bad), LABELS
    )
    assert not np.isfinite(found[0, 1])
    assert np.isfinite(found[1]).all()


def test_argmax_is_the_first_of_the_largest(logits):
    logits = logits.at[0, 0, jnp.asarray([2, 6])].set(90.0)
    found = sliced(VocabParallelLogits().argmax, logits)
    assert int(found[0, 0]) == 2
    np.testing.assert_array_equal(found, UnsplitLogits().argmax(logits))


WIDTH = 5


@pytest.fixture
def product():
    with jax.enable_x64():
        features, kernel, bias = (
            jax.random.normal(jax.random.key(n), shape, jnp.float64)
            for n, shape in enumerate([(2, 3, WIDTH), (8, WIDTH), (8,)])
        )
        yield LogitsProduct(
            features=features, kernel=kernel, bias=bias, kernel_dim=1, scope="head"
        )


def whole(product):
    kernel = product.kernel if product.kernel_dim else product.kernel.T
    return product.features @ kernel.T + product.bias


def turned(product):
    """The same of a layer, whose kernel is `[C, vocabulary]`."""
    return dataclasses.replace(product, kernel=product.kernel.T, kernel_dim=0)


def assert_close(found, expected):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14),
        found,
        expected,
    )


@pytest.mark.parametrize("form", [lambda x: x, turned], ids=["table", "layer"])
def test_a_product_is_scored_as_the_whole_with_its_gradients(product, form):
    weights = jnp.asarray([[0.5, 0.0, 2.0], [1.0, 0.25, 3.0]], jnp.float64)
    split = UnsplitLogits()

    def of_whole(product):
        return (split.cross_entropy(whole(product), LABELS) * weights).sum()

    def by_token(product):
        return (by_chunks(split.cross_entropy, product, LABELS) * weights).sum()

    def in_one_pass(product):
        return weighted_cross_entropy(split, product, LABELS, weights)

    given = form(product)
    expected = jax.value_and_grad(of_whole)(given)
    assert_close(jax.jit(jax.value_and_grad(by_token))(given), expected)
    assert_close(jax.jit(jax.value_and_grad(in_one_pass))(given), expected)
    assert_close(in_one_pass(given), expected[0])
    assert_close(by_chunks(split.argmax, given), split.argmax(whole(given)))


def test_a_product_in_slices_is_scored_as_the_whole(product):
    weights = jnp.ones(LABELS.shape, jnp.float64)

    def of_slice(features, kernel, bias):
        part = dataclasses.replace(product, features=features, kernel=kernel, bias=bias)
        split = VocabParallelLogits()
        loss, back = jax.value_and_grad(
            # Each of four devices has a quarter of the loss to answer for.
            lambda part: weighted_cross_entropy(split, part, LABELS, weights) / 4
        )(part)
        features = jax.lax.psum(back.features, "tensor")
        return 4 * loss, features, back.kernel, by_chunks(split.argmax, part)

    mesh = Mesh(np.asarray(jax.devices()[:4]), ("tensor",))
    found = jax.jit(
        jax.shard_map(
            of_slice,
            mesh=mesh,
            in_specs=(P(), P("tensor"), P("tensor")),
            out_specs=(P(), P(), P("tensor"), P()),
            check_vma=False,
        )
    )(product.features, product.kernel, product.bias)
    split = UnsplitLogits()
    loss, back = jax.value_and_grad(
        lambda x: split.cross_entropy(whole(x), LABELS).sum()
    )(product)
    best = split.argmax(whole(product))
    assert_close(found, (loss, back.features, back.kernel, best))


def test_targets_that_do_not_count_weigh_nothing_in_a_product(product):
    batch = {"target": jnp.asarray([[0, -100, 4], [-100, -100, -100]], jnp.int32)}
    objective = NextToken()

    def of_whole(product):
        return objective.losses(whole(product), batch).mean()

    def in_chunks(product):
        return objective.mean_loss(product, batch)

    expected = jax.value_and_grad(of_whole)(product)
    assert_close(jax.value_and_grad(in_chunks)(product), expected)
    assert_close(objective.losses(product, batch).mean(), expected[0])


def products(jaxpr):
    """Count the products of a traced function, those of its loops included."""
    return str(jaxpr).count("dot_general")


def test_a_frozen_kernel_has_no_gradient(product):
    def loss(features, kernel):
        part = dataclasses.replace(product, features=features, kernel=kernel)
        return weighted_cross_entropy(
            UnsplitLogits(), part, LABELS, jnp.ones(LABELS.shape, jnp.float64)
        )

    given = product.features, product.kernel
    both = jax.make_jaxpr(jax.grad(loss, (0, 1)))(*given)
    features = jax.make_jaxpr(jax.grad(loss))(*given)
    assert (products(both), products(features)) == (3, 2)


@pytest.mark.parametrize(
    ("tokens", "chunks"), [(65_536, 16), (4_100, 2), (6_000, 2), (1, 1), (8_191, 1)]
)
def test_chunks_are_equal(tokens, chunks):
    assert chunk_count(tokens) == chunks
    assert tokens % chunks == 0
