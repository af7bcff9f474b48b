"""Which blocks are averaged when, what that moves, and what is refused."""

import math

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.partition import data_parallel
from jaxdist.partition.outer_sync import assign_fragments, plan_syncs
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.train import build_layout


def leaf(name, *shape):
    return LeafSharding(
        name=name, shape=shape, dtype=np.float32, tensor_dim=None, fsdp_dim=None
    )


LEAVES = (
    leaf("embed/embedding", 64, 16),
    leaf("block0/up/kernel", 16, 32),
    leaf("block0/up/bias", 32),
    leaf("block1/up/kernel", 16, 32),
    leaf("block1/up/bias", 32),
    leaf("head/kernel", 16, 4),
)
STATS = (leaf("norm/mean", 16), leaf("norm/var", 16))


def plan_of(replica=2, **outer):
    return Plan(mesh=MeshShape(replica=replica), outer=OuterConfig(**outer))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_each_parameter_is_in_one_fragment_and_blocks_stay_together(count):
    dealt = assign_fragments(LEAVES, count)
    assert sorted(place for places in dealt for place in places) == list(range(6))
    for places in dealt:
        for first, second in ((1, 2), (3, 4)):
            assert (first in places) == (second in places)


def test_the_largest_blocks_are_apart():
    sizes = [
        sum(math.prod(LEAVES[p].shape) for p in places)
        for places in assign_fragments(LEAVES, 3)
    ]
    assert sizes == [1024, 608, 544]


def test_more_fragments_than_blocks_are_refused():
    with pytest.raises(BadInput, match="fewer blocks than fragments") as caught:
        plan_syncs(plan_of(sync_interval=8, fragments=5), LEAVES, STATS)
    assert caught.value.remedy == ("plan.outer.fragments=4",)


@pytest.mark.parametrize(("every", "count"), [(50, 1), (50, 4), (4, 4), (7, 3)])
def test_each_fragment_has_a_step_of_its_own_and_the_last_ends_the_period(every, count):
    syncs = plan_syncs(plan_of(sync_interval=every, fragments=count), LEAVES, STATS)
    times = [[s for s in range(1, 2 * every + 1) if sync.due(s)] for sync in syncs]
    assert all(second - first == every for first, second in times)
    assert len({first for first, _ in times}) == count
    assert times[-1] == [every, 2 * every]
    assert [bool(sync.averaged_stats) for sync in syncs] == [False] * (count - 1) + [
        True
    ]


def test_bytes_are_those_of_the_parameters_and_statistics():
    (sync,) = plan_syncs(plan_of(sync_interval=50), LEAVES, STATS)
    (row,) = sync.rows
    numbers = sum(math.prod(x.shape) for x in (*LEAVES, *STATS))
    assert (row.kind, row.axes, row.payload) == (
        "all-reduce",
        ("replica",),
        4 * numbers,
    )


def test_without_replicas_an_outer_loop_says_that_it_does_nothing():
    with pytest.warns(
        UserWarning, match=r"plan\.outer\.sync_interval = 9 does nothing"
    ):
        assert plan_syncs(plan_of(1, sync_interval=9), LEAVES, STATS) == ()


def test_replicas_without_an_outer_loop_are_refused_with_it_as_the_remedy():
    with pytest.raises(BadInput, match="nothing is split along replica") as caught:
        build_layout.check_axis_usage(plan_of(), ())
    assert "plan.outer.sync_interval=50" in caught.value.remedy
    build_layout.check_axis_usage(plan_of(sync_interval=50), ())


def test_a_batch_that_replicas_do_not_divide_is_refused():
    plan = Plan(mesh=MeshShape(replica=2, data=2), outer=OuterConfig(sync_interval=5))
    with pytest.raises(BadInput, match=r"plan\.mesh\.replica x") as caught:
        data_parallel.check_batch_size(plan, 6)
    assert caught.value.remedy == ("data.batch=4 or data.batch=8",)
    data_parallel.check_batch_size(plan, 8)
