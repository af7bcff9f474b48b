"""The transfers of a step are all run, each rank sending and receiving once a permute."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.collectives.algorithms.non_power_of_two import floor_power_of_two
from jaxdist.collectives.algorithms.registry import SCHEDULES, make_schedule
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    Transfer,
)
from jaxdist.collectives.permutes import matchings, permutes
from jaxdist.core.errors import BadInput


def busiest(transfers):
    ends = Counter(("from", t.source) for t in transfers)
    ends += Counter(("to", t.target) for t in transfers)
    return max(ends.values(), default=0)


ranks = st.integers(0, 6)
some = st.lists(st.builds(Transfer, ranks, ranks, ranks, st.just(1), st.booleans()))


@given(some)
def test_transfers_are_divided_into_as_few_parts_as_the_busiest_rank_needs(transfers):
    parts = matchings(transfers)
    assert len(parts) == busiest(transfers)
    assert all(busiest(part) == 1 for part in parts)
    assert Counter(t for part in parts for t in part) == Counter(transfers)


@pytest.mark.parametrize("name", SCHEDULES)
def test_permutes_hold_the_transfers_of_their_step(name):
    for ranks in [
        p for p in range(2, 17) if p == floor_power_of_two(p) or name != "swing"
    ]:
        if name == "striped_halving_doubling" and ranks != floor_power_of_two(ranks):
            continue
        steps = make_schedule(name, ranks)
        for step, divided in zip(steps.steps, permutes(steps), strict=True):
            back = [
                Transfer(*pair, start, p.count, p.adds)
                for p in divided
                for pair, start in zip(p.pairs, p.starts, strict=True)
            ]
            assert Counter(back) == Counter(step.transfers)


def test_messages_of_two_sizes_are_two_permutes():
    step = ScheduleStep((Transfer(0, 1, 0, 2, True), Transfer(1, 0, 2, 1, True)))
    steps = CollectiveSchedule(name="own", ranks=2, chunks=3, steps=(step,))
    assert [p.count for p in permutes(steps)[0]] == [2, 1]


def test_a_step_that_would_send_what_it_has_just_received_is_refused():
    everybody = [(a, b) for a in range(3) for b in range(3) if a != b]
    step = ScheduleStep(tuple(Transfer(a, b, 0, 1, True) for a, b in everybody))
    steps = CollectiveSchedule(name="own", ranks=3, chunks=1, steps=(step,))
    with pytest.raises(BadInput, match="a step for each"):
        permutes(steps)
