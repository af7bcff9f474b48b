"""Each part of a network has the rank that a plan gives it."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.partition.gradient_buckets import bucket_traffic, plan_reduction
from jaxdist.partition.param_sharding import leaf_shardings


class Shape:
    dtype = "float32"

    def __init__(self, *shape):
        self.shape = shape


NAMED = {
    "head/kernel": Shape(64, 32),
    "block3/conv1/kernel": Shape(3, 3, 32, 32),
    "block3/conv2/kernel": Shape(3, 3, 32, 32),
    "block30/kernel": Shape(64, 64),
    "block3/norm/scale": Shape(32),
}


def reduction_of(*ranks, algorithm="power"):
    reduce = ReductionConfig(
        algorithm=algorithm, rank=4, ranks=ranks, min_compressed_elements=0
    )
    plan = Plan(mesh=MeshShape(data=4), reduce=reduce)
    leaves = leaf_shardings(plan, {}, NAMED)
    return plan, leaves, plan_reduction(plan, leaves)


def ranks_of(*ranks):
    _, leaves, reduction = reduction_of(*ranks)
    return {
        leaves[place].name: bucket.algorithm.rank
        for bucket in reduction.buckets
        for place in bucket.leaf_indices
    }


def test_the_longest_path_counts():
    found = ranks_of("block3:8", "block3.conv2:2")
    assert found["block3/conv1/kernel"] == 8
    assert found["block3/conv2/kernel"] == 2


def test_a_path_ends_at_a_dot():
    assert ranks_of("block3:8")["block30/kernel"] == 4


def test_bytes_are_those_of_each_rank():
    plan, leaves, reduction = reduction_of("head:1", "block3:2", "block30:3")
    moved = sum(row.payload for row in bucket_traffic(plan, leaves, reduction))
    numbers = 1 * (64 + 32) + 2 * 2 * (288 + 32) + 3 * (64 + 64)
    assert moved == 4 * numbers


@pytest.mark.parametrize(
    ("ranks", "via", "says"),
    [
        (("block3",), "power", "is no rank"),
        (("block3:0",), "power", "is no rank"),
        (("block3:x",), "power", "is no rank"),
        (("block4:2",), "power", "no parameters are at block4"),
        (("block3:2",), "int8", "int8 has no ranks"),
    ],
)
def test_what_is_no_rank_is_refused(ranks, via, says):
    with pytest.raises(BadInput, match=says):
        reduction_of(*ranks, algorithm=via)


def test_a_path_that_is_near_is_named():
    with pytest.raises(BadInput) as caught:
        reduction_of("blok3:2")
    assert caught.value.remedy == ("did you mean block3?",)
