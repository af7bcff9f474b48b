"""Which calls are split where a plan ends the split, and what the gather there moves."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import BatchNorm, Conv, Dropout, GlobalMean
from jaxdist.models.config import ModelConfig
from jaxdist.models.conv_blocks import Chain
from jaxdist.models.registry import model_factory
from jaxdist.partition import spatial_parallel, tensor_parallel
from jaxdist.partition.block_padding import fit_block_padding
from jaxdist.partition.spatial_layers import call_ranges
from jaxdist.train.task import Task

SMALL = ModelConfig(width=4)


@functools.cache
def task_of(config):
    return Task(model=model_factory(config), optimizer=optax.identity())


def read(config, until, rows=16, dtype=jnp.float32, how=None, **axes):
    """The plan, the calls and the sizes of a network."""
    task, channels = task_of(config), 1 if config.name == SMALL.name else 3
    plan = Plan(mesh=MeshShape(**axes), spatial_end=until, **(how or {}))
    image = jax.ShapeDtypeStruct((8, rows, rows, channels), dtype)
    return plan, *fit_block_padding(
        plan, task.graph, (task.state.params, task.state.stats), image
    )


def moved(plan, calls, roles=None):
    """(kind, axis, bytes) of what gathers move."""
    rows = spatial_parallel.gather_traffic(
        plan, call_ranges(plan, calls)[0].calls, roles or {}
    )
    return [(row.kind, *row.axes, row.payload) for row in rows]


def test_behind_the_gather_the_plan_has_no_spatial_axes():
    plan, calls, sizes = read(SMALL, "block3", data=2, spatial_h=2, spatial_w=2)
    before, behind = call_ranges(plan, calls)
    assert before.plan == before.norm_plan == plan
    assert behind.plan == behind.norm_plan == Plan(mesh=MeshShape(data=2))
    assert before.calls[-1].path == "gather_block3"
    assert {call.path.split(".")[0] for call in behind.calls} == {"block3", "head"}
    assert {path: cut.axes for path, cut in sizes.splits.items()} == {
        call.path: () for call in behind.calls
    }


def test_samples_are_dealt_out_behind_the_exchange():
    how = {"spatial_end_mode": "samples"}
    plan, calls, _ = read(SMALL, "block3", how=how, data=2, spatial_h=2, spatial_w=2)
    _, behind = call_ranges(plan, calls)
    assert behind.plan.mesh == MeshShape(data=8)
    assert behind.norm_plan == plan


def test_without_an_end_every_call_is_split():
    plan, calls, sizes = read(SMALL, "", spatial_h=2)
    before, behind = call_ranges(plan, calls)
    assert (before.plan, before.calls, behind.calls) == (plan, calls, ())
    assert not sizes.splits


def test_rows_are_gathered_dim_by_dim():
    plan, calls, _ = read(SMALL, "block2", data=2, spatial_h=2, spatial_w=2)
    each = 4 * 4 * 4  # bytes of 4 samples' 4 channels at one position
    assert moved(plan, calls) == [
        ("all-gather", "spatial_h", 16 * 8 * each),
        ("reduce-scatter", "spatial_h", 8 * 8 * each),
        ("all-gather", "spatial_w", 16 * 16 * each),
        ("reduce-scatter", "spatial_w", 16 * 8 * each),
    ]


def test_rows_for_samples_are_as_many_bytes_as_a_device_has():
    how = {"spatial_end_mode": "samples"}
    plan, calls, _ = read(SMALL, "block2", how=how, data=2, spatial_h=2, spatial_w=2)
    block = 4 * 8 * 8 * 4 * 4  # samples, rows, columns, channels, bytes
    assert moved(plan, calls) == [
        ("all-to-all", "spatial_h", 2 * block),
        ("all-to-all", "spatial_w", 2 * block),
    ]


def test_padding_is_cut_off_before_the_next_dim():
    plan, calls, sizes = read(SMALL, "block2", rows=13, spatial_h=4, spatial_w=2)
    assert sizes.padded_rows == {"spatial_h": 16, "spatial_w": 14}
    assert sizes.splits["gather_block2"].rows == (13, 13)
    assert sizes.splits["block2.conv1"].rows is None
    each = 8 * 4 * 4
    assert moved(plan, calls) == [
        ("all-gather", "spatial_h", 16 * 7 * each),
        ("reduce-scatter", "spatial_h", 4 * 7 * each),
        ("all-gather", "spatial_w", 13 * 14 * each),
        ("reduce-scatter", "spatial_w", 13 * 7 * each),
    ]


def test_only_strides_before_the_gather_make_blocks_larger():
    """Until block2 the stride is 1; to the end it would be 4, and 16 rows fill 4."""
    _, calls, sizes = read(SMALL, "block2", spatial_h=16)
    assert not sizes.padded_rows
    assert all(call.padded_shape == call.shape for call in calls)


def test_halves_travel_as_they_are_and_are_summed_in_full():
    config = ModelConfig(width=4)
    task = Task(
        model=functools.partial(model_factory(config), dtype=jnp.bfloat16),
        optimizer=optax.identity(),
    )
    plan = Plan(mesh=MeshShape(spatial_h=2), spatial_end="block2")
    image = jax.ShapeDtypeStruct((8, 16, 16, 1), jnp.bfloat16)
    state = task.state.params, task.state.stats
    calls, _ = fit_block_padding(plan, task.graph, state, image)
    numbers = 8 * 16 * 16 * 4
    assert moved(plan, calls) == [
        ("all-gather", "spatial_h", 2 * numbers),
        ("reduce-scatter", "spatial_h", 4 * numbers // 2),
    ]


@pytest.mark.parametrize(
    ("until", "parts"), [("conv2_2", 1), ("pool2", 1), ("conv2_1", 2), ("pool1", 2)]
)
def test_between_the_layers_of_a_pair_a_device_has_its_features(until, parts):
    """conv1_1 and conv2_1, with the maximum between, are one pair of the tiny VGG."""
    config = ModelConfig(name="vgg16", size="tiny")
    plan, calls, _ = read(config, until, rows=32, spatial_h=2, tensor=2)
    network = nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))
    roles = tensor_parallel.assign_roles(plan, calls, network)
    gather = next(call for call in calls if call.path == f"gather_{until}")
    whole = 8 * gather.shape[1] * gather.shape[2] * gather.shape[3] * 4
    assert moved(plan, calls, roles)[0] == ("all-gather", "spatial_h", whole // parts)


@pytest.mark.parametrize(
    ("name", "until", "says"),
    [
        ("resnet8", "blok3", "did you mean plan.spatial_end=block3?"),
        ("resnet8", "stem", "and not the first"),
        ("vgg16", "dense1", "no images enter dense1"),
        ("vgg16", "head", "head reads [8, 512]"),
    ],
)
def test_what_cannot_be_the_end_is_refused(name, until, says):
    size = "full" if name == "resnet8" else "tiny"
    config = SMALL if name == "resnet8" else ModelConfig(name=name, size=size)
    with pytest.raises(BadInput, match=r"plan\.spatial_end") as refused:
        read(config, until, rows=32, spatial_h=2)
    assert says in str(refused.value)


class Odd(Chain):
    """Blocks that are not called as a chain would call them."""

    def __init__(self, kind, *, rngs):
        first, last = Conv(1, 4, (3, 3), rngs=rngs), Conv(4, 4, (3, 3), rngs=rngs)
        super().__init__({"first": first, "last": last, "head": GlobalMean()})
        self.kind, self.shared = kind, BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        if self.kind == "never":
            return self.head(self.first(x))
        if self.kind == "twice":
            return self.head(self.last(self.last(self.first(x))))
        return self.head(self.shared(self.last(self.shared(self.first(x)))))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("never", "0 calls of it"),
        ("twice", "2 calls of it"),
        ("shared", "shared is on both"),
    ],
)
def test_a_network_that_is_no_chain_there_is_refused(kind, says):
    network = nnx.eval_shape(lambda: Odd(kind, rngs=nnx.Rngs(0)))
    graph, *state = nnx.split(network, nnx.Param, ...)
    plan = Plan(mesh=MeshShape(spatial_h=2), spatial_end="last")
    image = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32)
    with pytest.raises(BadInput, match="cannot end at last") as refused:
        fit_block_padding(plan, graph, state, image)
    assert says in refused.value.values


def test_a_network_without_blocks_is_refused():
    class Plain(nnx.Module):
        def __init__(self):
            self.drop, self.mean = Dropout(0.5), GlobalMean()

        def __call__(self, x):
            return self.mean(self.drop(x))

    graph, state = nnx.split(Plain())
    plan = Plan(mesh=MeshShape(spatial_h=2), spatial_end="mean")
    image = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32)
    with pytest.raises(BadInput, match="Plain has no blocks"):
        fit_block_padding(plan, graph, (state,), image)
