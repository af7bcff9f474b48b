"""Wrapped methods belong to one object, nest, and pass through what flax does."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdist.core.instance_methods import wrap_method
from jaxdist.layers import Linear


def added(number):
    return lambda call, self, x: call(self, x) + number


def linear():
    layer = Linear(2, 2, rngs=nnx.Rngs(0))
    layer.kernel[...] = jnp.eye(2)
    return layer


X = jnp.ones((1, 2))


def test_one_object_alone_is_changed():
    one, other = linear(), linear()
    wrap_method(one, added(1))
    assert one(X).tolist() == [[2, 2]]
    assert other(X).tolist() == [[1, 1]]
    assert isinstance(one, Linear)
    assert type(one).__name__ == "Linear"


def test_a_later_wrapper_is_around_an_earlier_one():
    one = linear()
    wrap_method(one, added(1))
    wrap_method(one, lambda call, self, x: 10 * call(self, x))
    assert one(X).tolist() == [[20, 20]]


def test_the_wrapper_is_given_the_object_that_is_called():
    one, seen = linear(), []
    wrap_method(one, lambda call, self, x: seen.append(self) or call(self, x))
    copy = nnx.merge(*nnx.split(one))
    copy(X)
    assert seen == [copy]
    assert copy is not one


def test_two_methods_of_an_object():
    class Table:
        def __call__(self, x):
            return x + 1

        def attend(self, x):
            return x - 1

    one = Table()
    for method in ("__call__", "attend"):
        wrap_method(one, lambda call, self, x: 10 * call(self, x), method)
    assert (one(1), one.attend(1)) == (20, 0)


def test_a_wrapped_module_is_split_jitted_and_set_to_evaluation():
    one = linear()
    wrap_method(one, added(1))
    one.eval()
    graph, state = nnx.split(one)
    assert hash(graph) == hash(nnx.split(one)[0])
    run = jax.jit(lambda state: nnx.merge(graph, state)(X))
    assert run(state).tolist() == [[2, 2]]
