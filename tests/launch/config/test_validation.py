"""Rules that bind several keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.launch.config.resolve import (
    nearest_multiples,
    resolve_config,
    smaller_divisors,
)


def refused(*words):
    with pytest.raises(BadInput) as caught:
        resolve_config("digits", ["data.batch=64", *words])
    return caught.value


def test_a_batch_that_does_not_divide_names_sizes_and_meshes():
    assert str(refused("plan.mesh.data=5")) == (
        "the global batch does not divide over the mesh\n"
        "  rule     data.batch is a multiple of plan.mesh.data\n"
        "  values   data.batch = 64 (command line), plan.mesh.data = 5 (command line)\n"
        "  remedy   data.batch=65 or data.batch=60, or plan.mesh.data=4 or plan.mesh.data=2"
    )


def test_all_axes_that_divide_the_batch_count():
    error = refused("plan.mesh.data=3", "plan.mesh.fsdp=2")
    assert error.rule == "data.batch is a multiple of plan.mesh.data x plan.mesh.fsdp"
    assert error.remedy == (
        "data.batch=66 or data.batch=60, or plan.mesh.data=2 or plan.mesh.data=1",
    )
    assert refused("plan.mesh.fsdp=3").remedy == ("data.batch=60 or data.batch=72",)


def test_microbatches_count_as_well():
    error = refused("plan.mesh.data=4", "optim.accumulate=3")
    assert error.rule == "data.batch is a multiple of plan.mesh.data x optim.accumulate"
    assert error.remedy == ("data.batch=60 or data.batch=72",)


def test_a_batch_below_the_mesh_has_one_size_to_go_to():
    error = refused("data.batch=3", "plan.mesh.data=8")
    assert error.remedy == ("data.batch=8, or plan.mesh.data=3 or plan.mesh.data=1",)


@pytest.mark.parametrize("batch", [0, -4])
def test_a_batch_without_samples(batch):
    error = refused(f"data.batch={batch}")
    assert error.rule == "data.batch is at least 1"
    assert error.remedy == ("data.batch=1",)


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_sizes_that_are_named_work_and_none_is_nearer(batch, shards):
    sizes = nearest_multiples(batch, shards)
    assert all(size > 0 and size % shards == 0 for size in sizes)
    assert min(abs(size - batch) for size in sizes) == abs(sizes[0] - batch)
    assert abs(sizes[-1] - batch) <= max(shards, abs(sizes[0] - batch))
    assert all(batch % n == 0 and n < shards for n in smaller_divisors(batch, shards))
