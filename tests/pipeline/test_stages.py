"""Cuts of a network: where a plan says, or in balance; what cannot be cut is refused."""

import itertools

import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.pipeline.stages import balanced_cuts, cut_network


class Chained(nnx.Module):
    """Five blocks."""

    def __init__(self):
        for name in "abcde":
            setattr(self, f"block_{name}", nnx.Linear(2, 2, rngs=nnx.Rngs(0)))

    def chain(self):
        return ((f"block_{name}", getattr(self, f"block_{name}")) for name in "abcde")


WORK = dict(block_a=8, block_b=1, block_c=1, block_d=5, block_e=1)


def cut_in(stages, *cuts, network=None, **how):
    plan = Plan(mesh=MeshShape(pipe=stages), pipe=PipelineConfig(cuts=cuts, **how))
    return cut_network(plan, network or Chained(), lambda: WORK)


def test_cuts_by_hand_name_the_first_block_of_each_later_stage():
    found = cut_in(2, "block_d")
    assert found.blocks == (("block_a", "block_b", "block_c"), ("block_d", "block_e"))
    assert found.stage_of("block_e") == 1


def test_without_cuts_the_largest_stage_is_as_small_as_can_be():
    assert cut_in(2).blocks[0] == ("block_a",)
    assert balanced_cuts([1, 1, 1, 1], 4) == [1, 2, 3]
    assert balanced_cuts([1, 1, 1, 1, 8], 2) == [4]
    assert balanced_cuts([3, 3, 3], 1) == []


@given(
    costs=st.lists(st.sampled_from([0, 1, 2, 5, 10**20]), min_size=1, max_size=8),
    parts=st.integers(1, 8),
)
def test_no_cuts_have_a_smaller_largest_part(costs, parts):
    """Also of FLOPs beyond 64 bits: a step of a trillion parameters has as many."""
    if parts > len(costs):
        return

    def largest(starts):
        ends = [0, *starts, len(costs)]
        return max(sum(costs[a:b]) for a, b in itertools.pairwise(ends))

    every = itertools.combinations(range(1, len(costs)), parts - 1)
    assert largest(balanced_cuts(costs, parts)) == min(map(largest, every))


def test_chunks_are_dealt_out_in_turn():
    found = cut_in(2, chunks=2)
    assert found.count == 4
    assert [found.placement.device_of(stage) for stage in range(4)] == [0, 1, 0, 1]


def test_a_cut_before_no_block_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match=r"plan\.pipe\.cuts=block_d"):
        cut_in(2, "blok_d")
    with pytest.raises(BadInput, match="no stage begins before the first block"):
        cut_in(2, "block_a")


def test_cuts_out_of_order_or_twice_are_refused():
    with pytest.raises(BadInput, match=r"plan\.pipe\.cuts=block_b,block_d"):
        cut_in(3, "block_d", "block_b")
    with pytest.raises(BadInput, match="cut twice before block_b"):
        PipelineConfig(cuts=("block_b", "block_b"))


def test_cuts_for_another_number_of_stages_are_refused():
    with pytest.raises(BadInput, match="2 stages; pipe 3 has 3"):
        cut_in(3, "block_d")


def test_more_stages_than_blocks_are_refused():
    with pytest.raises(BadInput, match=r"8 stages, 5 blocks.*plan\.mesh\.pipe=4"):
        _flat(8)


def _flat(stages):
    try:
        cut_in(stages)
    except BadInput as error:
        raise BadInput(" ".join(str(error).split())) from error


def test_a_network_that_is_no_chain_is_refused():
    with pytest.raises(BadInput, match="Linear cannot be cut into stages"):
        cut_in(2, network=nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
