"""Anybody's jitted step: what it moves, from which line, and what is repeated."""

from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdist
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import image_shape, model_factory
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import compile_program
from jaxdist.train.task import Task


@pytest.fixture(scope="module")
def mesh():
    kinds = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("data", "tensor"), kinds, devices=jax.devices()[:8])


def f32(mesh, *shape, split=()):
    where = NamedSharding(mesh, P(*split))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)


def grouped(kernel, images, groups=2):
    return lax.conv_general_dilated(
        images,
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def loss(kernel, images):
    return jnp.square(grouped(kernel, images)).mean()


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


@pytest.fixture(scope="module")
def second_of_alexnet():
    """AlexNet's second convolution under plain jit, its batch split over 8 devices."""
    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,), devices=jax.devices()[:8])
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    args = f32(mesh, 5, 5, 48, 256), f32(mesh, 16, 13, 13, 96, split=("data",))
    return jaxdist.audit(step, *args)


def test_a_grouped_convolution_gathers_the_batch(second_of_alexnet):
    found = second_of_alexnet
    assert len(found.gathers) == 2
    whole = [text for text in found.findings if "the whole of args[1]" in text]
    assert len(whole) == 1
    assert "unplanned all-gather over data, 1.04 MB" in whole[0]
    assert "a grouped convolution" in whole[0]
    gather = next(place for place in found.places if place.kind == "all-gather")
    at = line_of("    return lax.conv_general_dilated(")
    assert gather.source == f"{__file__}:{at}"
    assert gather.operation == "conv_general_dilated"


def test_and_repeats_its_work(second_of_alexnet):
    assert 5 < second_of_alexnet.repeats < 8
    assert "replicated compute: 8 devices" in second_of_alexnet.findings[-1]


def test_the_same_inside_shard_map_does_neither(mesh):
    def local(kernel, images):
        share, (dkernel, dimages) = jax.value_and_grad(loss, (0, 1))(kernel, images)
        return lax.psum((share, dkernel), "data"), dimages

    step = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=((P(), P()), P("data")),
        check_vma=False,
    )
    args = f32(mesh, 5, 5, 8, 16), f32(mesh, 8, 13, 13, 16, split=("data",))
    found = jaxdist.audit(jax.jit(step), *args)
    assert found.gathers == found.findings == ()
    assert found.repeats == pytest.approx(1, rel=0.1)
    assert {place.axes for place in found.places} == {("data",)}


def test_our_own_network_of_two_groups_gathers_nothing():
    config = ModelConfig(name="alexnet_two_group", size="tiny")
    plan = Plan(mesh=MeshShape(data=4))
    shapes = {
        "image": jax.ShapeDtypeStruct((8, *image_shape(config)), jnp.float32),
        "label": jax.ShapeDtypeStruct((8,), jnp.int32),
        "id": jax.ShapeDtypeStruct((8,), jnp.int32),
    }
    task = Task(model=model_factory(config), optimizer=optax.sgd(0.1))
    mesh = build_mesh(plan, jax.devices()[:4])
    program = compile_program(build_layout(task, plan, mesh, shapes))
    assert [move for move in program.collectives if move.kind == "all-gather"] == []
    assert jaxdist.audit(program.compiled_step).findings == ()


def test_a_gather_that_was_written_is_planned(mesh):
    step = jax.shard_map(
        lambda x: lax.all_gather(x, "data", tiled=True),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(),
        check_vma=False,
    )
    found = jaxdist.audit(jax.jit(step), f32(mesh, 8, 3, split=("data",)))
    assert [(p.kind, p.operation, p.payload) for p in found.places] == [
        ("all-gather", "all_gather", 8 * 3 * 4)
    ]
    assert found.findings == ()


def test_loops_count_and_places_are_summed(mesh):
    def local(x):
        def body(c, _):
            return lax.psum(jnp.sin(c), "tensor"), None

        return lax.scan(body, x, None, length=5)[0]

    step = jax.shard_map(
        local, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )
    found = jaxdist.audit(jax.jit(step), f32(mesh, 8, 3, split=("data",)))
    (place,) = found.places
    assert (place.count, place.payload) == (5, 5 * 2 * 3 * 4)
    assert place.wire == 5 * 2 * 3 * 4


def test_lowered_and_compiled_steps_and_plain_arrays_do(mesh):
    step = jax.jit(lambda w, x: jnp.tanh(x @ w).sum())
    args = f32(mesh, 16, 32), f32(mesh, 8, 16, split=("data",))
    lowered = step.lower(*args)
    three = [jaxdist.audit(s) for s in (lowered, lowered.compile())]
    three += [jaxdist.audit(step, *args)]
    assert {found.devices for found in three} == {8}
    assert {tuple(found.places) for found in three} == {three[0].places}
    assert [found.repeats is None for found in three] == [True, True, False]
    alone = jaxdist.audit(step, jnp.zeros((16, 32)), jnp.zeros((8, 16)))
    assert (alone.devices, alone.places) == (1, ())
    assert alone.repeats == pytest.approx(1, rel=0.05)


def test_flax_steps_do():
    step = nnx.jit(lambda model, x: model(x))
    found = jaxdist.audit(step, nnx.Linear(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3)))
    assert found.flops_device > 0


def test_it_prints_as_a_table(second_of_alexnet):
    text = str(second_of_alexnet).splitlines()
    assert text[0] == "  mesh     data 8"
    assert any(line.startswith("  all-gather   data") for line in text)
    assert sum(line.startswith("found: ") for line in text) == 3


def test_wrong_inputs_are_answered(mesh):
    with pytest.raises(BadInput, match="loss is not jitted") as caught:
        jaxdist.audit(loss, f32(mesh, 8))
    assert caught.value.remedy == ("step = jax.jit(step)",)
    with pytest.raises(BadInput, match="cannot be called on these arguments"):
        jaxdist.audit(jax.jit(loss), f32(mesh, 8))
    with pytest.raises(BadInput, match="cannot be called on these arguments"):
        jaxdist.audit(jax.jit(loss), "images", "kernel")


def test_the_module_offers_what_the_package_does():
    assert jaxdist.inspect.audit is jaxdist.audit
    assert jaxdist.inspect.bytes_of is jaxdist.bytes_of
    assert jaxdist.inspect.profile_network is jaxdist.profile_network


def test_a_network_is_profiled_on_shapes_alone():
    def make(*, dtype=None, rngs):
        return nnx.Linear(8, 2, dtype=dtype, rngs=rngs)

    network = jaxdist.build_abstract_network(make)
    profile = jaxdist.profile_network(
        network, [jax.ShapeDtypeStruct((4, 8), "float32")]
    )
    assert profile.parameters == 8 * 2 + 2
