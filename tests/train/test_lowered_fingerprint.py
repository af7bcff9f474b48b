"""What is said of a lowered step: names that differ where steps do."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

from jaxdist.launch.training.preflight import describe_differences
from jaxdist.train.program import operation_counts, step_outline


def lowered(step):
    return jax.jit(step).lower(jnp.zeros(3))


def outline(step, size=3):
    params = {"head": {"kernel": jnp.zeros((size, 2))}}
    state = SimpleNamespace(params=params)
    return step_outline(
        SimpleNamespace(task=SimpleNamespace(state=state)), lowered(step)
    )


def test_a_constant_and_an_operation_have_a_name():
    said = describe_differences(
        [outline(jnp.sin), outline(lambda x: 0.25 * jnp.sin(x))]
    )
    assert (
        "rank 1: stablehlo.constant dense<2.500000e-01> : tensor<f32> is there" in said
    )
    assert "rank 1: stablehlo.multiply is there (rank 0: none)" in said


def test_a_parameter_has_its_name_and_shape():
    said = describe_differences([outline(jnp.sin), outline(jnp.sin, size=4)])
    assert said == (
        "rank 1: parameters 8 (rank 0: 6); rank 1: parameter head/kernel "
        "float32 [4, 2] (rank 0: float32 [3, 2])"
    )


def test_what_is_done_once_more_is_counted():
    found = [
        operation_counts(lowered(step))
        for step in (jnp.sin, lambda x: jnp.sin(jnp.sin(x)))
    ]
    assert "stablehlo.sine 2 times (rank 0: 1 times)" in describe_differences(found)


def test_what_names_do_not_tell_the_digest_does():
    """The same operations in another order."""
    one = operation_counts(lowered(lambda x: jnp.sin(jnp.cos(x))))
    other = operation_counts(lowered(lambda x: jnp.cos(jnp.sin(x))))
    assert describe_differences([one, one]) == ""
    assert describe_differences([one, other]).startswith("rank 1: lowered step ")


def test_lines_of_source_are_no_difference():
    first, second = (lambda x: x + x), (lambda x: x + x)

    def third(x):
        return x + x

    third.__name__ = first.__name__
    texts = [operation_counts(lowered(step)) for step in (first, second, third)]
    assert texts[0] == texts[1] == texts[2]
