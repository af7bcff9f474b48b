"""Leaves of different stages in arrays that every device has."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.partition.param_sharding import LeafSharding, split_axes
from jaxdist.pipeline.plan_schedule import round_robin_placement
from jaxdist.pipeline.stage_parameters import add_to_prefix, assign_slots

PLAN = Plan(mesh=MeshShape(pipe=2, fsdp=2, expert=2, tensor=2))


def leaf(name, *shape, tensor=None, fsdp=None, expert=None):
    return LeafSharding(
        name=name,
        shape=shape,
        dtype="float32",
        tensor_dim=tensor,
        fsdp_dim=fsdp,
        expert_dim=expert,
    )


LEAVES = (
    leaf("a/kernel", 4, 6, tensor=1, fsdp=0),
    leaf("a/bias", 6),
    leaf("b/kernel", 2, 8, tensor=1, fsdp=0),
    leaf("table", 3, 2),
    leaf("b/bias", 4, 2),
    leaf("c/kernel", 2, 2, tensor=1, fsdp=0),
    leaf("c/down", 4, 6, 2, expert=0, tensor=1, fsdp=2),
)
USERS = [frozenset(stages) for stages in ({0}, {0}, {1}, {0, 1}, {1}, {1}, {1})]


@pytest.fixture
def slots():
    return assign_slots(PLAN, LEAVES, USERS, round_robin_placement(2, 2))


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=x.shape), jnp.float32) for x in LEAVES]


def test_a_leaf_that_int32_cannot_index_is_refused():
    """By shapes alone; the largest that it can index is not."""
    table = leaf("table", 2, 2**32, tensor=0, fsdp=1)
    users, where = [frozenset({0})], round_robin_placement(2, 2)
    with pytest.raises(BadInput, match="at most 2,147,483,647") as refused:
        assign_slots(PLAN, [table], users, where)
    assert refused.value.remedy == ("plan.mesh.fsdp=4",)
    table = leaf("table", 2, 2**32 - 2, tensor=0, fsdp=1)
    made = assign_slots(PLAN, [table], users, where)
    assert made.slots[0].leaf.shape == (2, 2, 1, 2, 2**31 - 1)


def test_the_largest_leaves_of_devices_share_a_slot(slots):
    assert [slot.places for slot in slots.slots] == [
        (0, 2),
        (None, 5),
        (None, 6),
        (1, 4),
    ]


def test_what_several_stages_use_lies_whole_on_all_devices(slots, arrays):
    held = slots.pack(arrays)
    assert list(held.shared) == ["table"]
    assert (held.shared["table"] == arrays[3]).all()


def test_biases_never_share_a_slot_with_kernels(slots):
    assert [slot.vector for slot in slots.slots] == [False, False, False, True]


def test_leaves_come_out_as_they_went_in(slots, arrays):
    for given, found in zip(arrays, slots.unpack(slots.pack(arrays)), strict=True):
        np.testing.assert_array_equal(given, found)


def test_a_device_finds_its_shards(slots, arrays):
    held = slots.pack(arrays)
    part = type(held)(
        matrices={k: x[1:, :, -1:, 1:] for k, x in held.matrices.items()},
        shared=held.shared,
        vectors={k: x[1:] for k, x in held.vectors.items()},
    )
    own = slots.own(part, device=1)
    assert sorted(own) == [2, 3, 4, 5, 6]
    np.testing.assert_array_equal(own[2], arrays[2][:, 4:])
    np.testing.assert_array_equal(own[4], arrays[4])
    np.testing.assert_array_equal(own[6], arrays[6][2:, 3:])
    twice = slots.add(part, 1, own, jnp.int32(0))
    np.testing.assert_array_equal(slots.own(twice, 1)[5], 2 * arrays[5][:, 1:])
    other = slots.put(twice, 1, {2: own[2]})
    np.testing.assert_array_equal(slots.own(other, 1)[2], own[2])


def test_adding_passes_over_a_leaf_and_not_over_its_slot():
    """The whole slot would be read under a mask: slow, or very slow."""
    slot, more = jnp.zeros((1, 1, 1, 1, 4096)), jnp.zeros((1, 16))

    def thrice(slot, more, count):
        def turn(state):
            k, slot = state
            return k + 1, add_to_prefix(
                slot, jnp.sin(more * k.astype(more.dtype)), jnp.minimum(k, 0)
            )

        return lax.while_loop(lambda s: s[0] < count, turn, (jnp.int32(0), slot))[1]

    step = jax.jit(thrice, donate_argnums=0).lower(slot, more, jnp.int32(3))
    text = step.compile().as_text()
    assert "f32[1,1,1,1,16]{4,3,2,1,0} dynamic-slice(" in text
    assert not re.search(r"f32\[1,1,1,1,4096\]\S* (add|select|copy|pad)\(", text)


def test_a_slot_names_the_axes_that_split_its_leaves(slots):
    kernels, _, experts, biases = (slot.leaf for slot in slots.slots)
    assert kernels.spec() == ("pipe", "fsdp", None, "tensor", None)
    assert experts.spec() == ("pipe", "fsdp", "expert", "tensor", None)
    assert biases.spec() == ("pipe", None, None, None, None)
    # Lengths of leaves are summed over these: along pipe are other leaves.
    assert split_axes(kernels) == ("fsdp", "tensor")
    assert split_axes(experts) == ("fsdp", "expert", "tensor")
    assert kernels.local_shape(PLAN) == (1, 1, 1, 1, 6)
