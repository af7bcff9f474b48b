"""PipeDream's tables: what they say of themselves, and which numbers they refuse."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.pipeline.draw_text import draw_text
from jaxdist.pipeline.pipedream_schedule import max_in_flight, pipedream, pipedream_2bw


def test_a_stage_of_two_written_out():
    assert draw_text(pipedream((2, 1), 4), width=90).plain.splitlines() == [
        "stage 0.0   0 ╱╱╱ 2 [0]╱╱╱╱╱╱╱╱╱[2]╱╱╱╱╱╱  2 in flight, 2 versions",
        "stage 0.1  ╱╱╱╱╱╱ 1 ╱╱╱ 3 [1]╱╱╱╱╱╱╱╱╱[3]  2 in flight, 2 versions",
        "stage 1    ╱╱╱ 0 [0] 1 [1] 2 [2] 3 [3]╱╱╱  1 in flight, 1 version",
        "tick        0           4           8",
    ]


def test_versions_and_updates_of_two_stages():
    made = pipedream((1, 1), 5)
    assert made.forward_versions == ((0, 0, 1, 2, 3), (0, 1, 2, 3, 4))
    assert made.update_ticks == ((3, 5, 7, 9, 11), (2, 4, 6, 8, 10))
    assert [made.staleness(0, micro) for micro in range(5)] == [0, 1, 1, 1, 1]


def test_devices_of_a_stage_are_neighbours_and_take_turns():
    made = pipedream((2, 1, 3), 6)
    assert (made.stages, made.devices) == (3, 6)
    assert [made.stage_of(device) for device in range(6)] == [0, 0, 1, 2, 2, 2]
    assert [made.device_of(2, micro) for micro in range(6)] == [3, 4, 5, 3, 4, 5]
    assert made.lane(4) == "stage 2.1"
    assert made.title == "pipedream, stages of 2-1-3, 6 microbatches"


def test_the_input_stage_holds_the_publications_number():
    """NOAM = ceil(devices / devices of the input stage)."""
    layouts = ((1, 1, 1, 1), (2, 1, 1), (7, 1), (9, 5, 1, 1))
    assert [max_in_flight(layout, 0) for layout in layouts] == [4, 2, 2, 2]


def test_without_stashing_a_backward_takes_other_weights_than_its_forward():
    made = pipedream((1, 1, 1), 6, stashing=False)
    assert made.name == "pipedream without stashing"
    assert made.forward_versions[0] == (0, 0, 0, 1, 2, 3)
    assert made.backward_versions[0] == (0, 1, 2, 3, 4, 5)
    assert [made.live_versions(stage) for stage in range(3)] == [1, 1, 1]


def test_in_sync_all_stages_take_the_input_stages_version():
    made = pipedream((1, 1, 1), 6, vertical_sync=True)
    assert made.name == "pipedream in sync"
    assert set(made.forward_versions) == {(0, 0, 0, 1, 2, 3)}
    assert [made.live_versions(stage) for stage in range(3)] == [3, 3, 3]


def test_groups_of_2bw():
    made = pipedream_2bw(2, 9, group=3)
    assert made.update_microbatches == (3, 3)
    assert set(made.forward_versions) == {(0, 0, 0, 0, 0, 0, 1, 1, 1)}
    assert made.update_ticks[1] == (6, 12, 18)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (((), 8), "replicas=1"),
        (((2, 0, 1), 8), "replicas=2,1,1"),
        (((3, 2), 8), "microbatches=6 or microbatches=12"),
        (((3, 2), 5), "remedy   microbatches=6"),
        (((1,), 0), "remedy   microbatches=1"),
    ],
)
def test_numbers_that_do_not_fit_are_answered(given, says):
    with pytest.raises(BadInput) as caught:
        pipedream(*given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((4, 8, 3), "remedy   group=4"),
        ((2, 9, 4), "microbatches=8 or microbatches=12"),
        ((0, 8, 4), "replicas=1"),
    ],
)
def test_groups_that_do_not_fit_are_answered(given, says):
    with pytest.raises(BadInput) as caught:
        pipedream_2bw(*given)
    assert says in str(caught.value)


def test_sync_needs_the_versions_that_stashing_keeps():
    with pytest.raises(BadInput, match="vertical sync without stashing"):
        pipedream((1, 1), 4, stashing=False, vertical_sync=True)
