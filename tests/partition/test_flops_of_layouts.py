"""Work a device: the plan's formula against traced steps and XLA's own count."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import Conv
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import image_shape, model_factory
from jaxdist.partition import audit
from jaxdist.partition.ledger import (
    LayerFlops,
    Ledger,
    compare_flops,
    predict_flops,
    sum_traced_flops,
)
from jaxdist.profile.flops import program_flops
from jaxdist.profile.layer_calls import LayerCall, trace_calls
from jaxdist.profile.trace import trace_pruned
from jaxdist.train.build_layout import build_layout
from jaxdist.train.step import make_train_step
from jaxdist.train.task import Task

SPLITS = [
    dict(data=4),
    dict(spatial_h=2),
    dict(spatial_h=4),
    dict(data=2, spatial_h=2, spatial_w=2),
]

WEIGHTS = [
    dict(fsdp=4),
    dict(fsdp=2, data=2, zero=1),
    dict(tensor=2, tensor_strategy="filter"),
    dict(tensor=2, tensor_strategy="channel"),
    dict(tensor=2, tensor_strategy="pairs"),
    dict(tensor=2, tensor_strategy="filter", data=2, spatial_h=2),
]


def plan_of(axes):
    """A plan; `weights` and `zero` are of the plan, everything else of its mesh."""
    how = {key: axes[key] for key in axes if key in ("tensor_strategy", "zero")}
    mesh = {key: size for key, size in axes.items() if key not in how}
    return Plan(mesh=MeshShape(**mesh), **how)


def mesh_of(plan):
    return build_mesh(plan, jax.devices()[: plan.mesh.devices])


def layout_of(name, axes):
    plan = plan_of(axes)
    return build_layout(task_of(name), plan, mesh_of(plan), shapes_of(name))


def title(axes):
    return " x ".join(f"{k} {n}" for k, n in axes.items()) if axes else "one device"


@functools.cache
def task_of(name):
    config = ModelConfig(name=name, size="tiny")
    return Task(model=model_factory(config), optimizer=optax.sgd(0.1))


def shapes_of(name, batch=8):
    config = ModelConfig(name=name, size="tiny")
    image = (batch, *image_shape(config))
    return {
        "image": jax.ShapeDtypeStruct(image, jnp.float32),
        "label": jax.ShapeDtypeStruct((batch,), jnp.int32),
        "id": jax.ShapeDtypeStruct((batch,), jnp.int32),
    }


def both(name, axes):
    """Work by layer on a device: the plan's, and that of the traced step."""
    planned = layout_of(name, axes).ledger.layer_flops
    return compare_flops(planned, sum_traced_flops(traced(name, axes), planned))


def traced(name, axes):
    layout = layout_of(name, axes)
    return trace_pruned(
        make_train_step(layout), layout.state, layout.padded_shapes(layout.batch_shapes)
    )


@pytest.mark.parametrize("axes", [{}, *SPLITS, *WEIGHTS], ids=title)
def test_the_plan_says_what_each_convolution_does_to_a_hundredth(axes):
    for work in both("resnet8", axes):
        assert work.traced == pytest.approx(work.planned, rel=0.01), work.layer


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("alexnet_two_group", dict(data=2)),
        ("alexnet_two_group", dict(tensor=2, tensor_strategy="filter")),
        ("vgg16", dict(tensor=2, spatial_h=2)),
        ("vgg16", dict(spatial_h=2)),
        ("googlenet", dict(data=2, spatial_w=2)),
        ("cosmoflow", dict(spatial_d=2, spatial_h=2)),
    ],
    ids=str,
)
def test_groups_strides_biases_and_depth_too(name, axes):
    for work in both(name, axes):
        assert work.traced == pytest.approx(work.planned, rel=0.01), work.layer


@pytest.mark.parametrize("axis", ["data", "fsdp"])
def test_a_split_of_samples_is_a_quarter_exactly(axis):
    one, four = (
        [w for w in both("resnet8", axes) if "dense" not in w.layer]
        for axes in ({}, {axis: 4})
    )
    assert [4 * w.traced for w in four] == [w.traced for w in one]
    assert [4 * w.planned for w in four] == [w.planned for w in one]


def test_the_rows_of_a_halo_are_the_whole_overhead():
    # 8 rows, SAME, 3 taps: 24 - 2 meetings whole, 2 x 4 x 3 in two blocks.
    (one,), (half,) = (
        [w for w in both("resnet8", axes) if w.layer == "block2.conv2"]
        for axes in ({}, dict(spatial_h=2))
    )
    assert half.planned / one.planned == 12 / 22 == half.traced / one.traced


@pytest.mark.parametrize("axes", [{}, *SPLITS], ids=title)
@pytest.mark.parametrize(
    ("size", "stride", "groups"),
    [(3, 1, 1), (3, 2, 1), (7, 2, 1), (1, 2, 1), (3, 1, 2)],
)
def test_xla_counts_a_convolution_as_the_plan_does(axes, size, stride, groups):
    plan = plan_of(axes)
    layer = nnx.eval_shape(
        lambda: Conv(
            4,
            6,
            (size, size),
            stride,
            feature_group_count=groups,
            use_bias=False,
            rngs=nnx.Rngs(0),
        )
    )
    image = jax.ShapeDtypeStruct((4, 32, 32, 4), jnp.float32)
    graph, params = nnx.split(layer)

    def local(params, x):
        y, back = jax.vjp(lambda *a: nnx.merge(graph, a[0])(a[1]), params, x)
        return y, back(y)

    spec = P("data", "spatial_h", "spatial_w")
    step = jax.shard_map(
        local,
        mesh=mesh_of(plan),
        in_specs=(P(), spec),
        out_specs=(spec, (P(), spec)),
        check_vma=False,
    )
    out = (4, 32 // stride, 32 // stride, 6)
    call = LayerCall(
        path="conv", layer=layer, shape=image.shape, out_shape=out, dtype=jnp.float32
    )
    counted = jax.jit(step).lower(params, image).cost_analysis()["flops"]
    planned = predict_flops(plan, [call], {})["conv"]
    assert planned == pytest.approx(counted, abs=2)  # XLA leaves two out, always


def test_what_is_computed_again_on_purpose_is_no_repeat():
    def loss(x, w):
        with jax.named_scope("conv1"):
            return jnp.sin(jnp.sin(x @ w) @ w).sum()

    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    plain = trace_pruned(jax.value_and_grad(loss), shape, shape)
    plain_flops = sum_traced_flops(plain, ["conv1"])
    # A policy's kept products are rounded to their own dtype, which is no work either.
    for policy in (None, jax.checkpoint_policies.dots_saveable):
        kept = jax.checkpoint(loss, policy=policy)
        again = trace_pruned(jax.value_and_grad(kept), shape, shape)
        assert program_flops(again) > program_flops(plain)
        assert sum_traced_flops(again, ["conv1"]) == plain_flops


def test_a_layer_that_is_not_split_is_named():
    task, shapes = task_of("resnet8"), shapes_of("resnet8")
    calls, _ = trace_calls(
        task.graph, (task.state.params, task.state.stats), shapes["image"]
    )
    planned = predict_flops(plan_of(dict(data=2)), calls, {})
    work = compare_flops(planned, sum_traced_flops(traced("resnet8", {}), planned))
    ledger = Ledger(plan=Plan(), rows=())
    with pytest.raises(audit.AuditError, match=r"where    stem\.conv") as caught:
        raise next(audit.find_differences([], ledger, work))
    assert "the step repeats work that the plan splits" in str(caught.value)
    assert len(list(audit.find_differences([], ledger, work))) == len(work) >= 9


def test_a_little_more_than_planned_is_no_repeat():
    assert not LayerFlops(layer="conv", planned=100, traced=104).is_redundant
    assert LayerFlops(layer="conv", planned=100, traced=200).is_redundant
