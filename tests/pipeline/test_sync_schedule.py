"""Tables of schedules: what they say of themselves, and which numbers they refuse."""

import pytest

from jaxdist.core.errors import BadInput, FatalError
from jaxdist.pipeline.schedule_base import (
    backward,
    dependencies,
    forward,
    lockstep_ticks,
    weight_gradient,
)
from jaxdist.pipeline.sync_schedule import (
    SYNC_SCHEDULES,
    forward_only,
    make_sync_schedule,
)


def written(table):
    """A line a device, a word a tick: f0, b0, w0, or a dot."""
    words = [
        [f"{work.kind[0]}{work.microbatch}" if work else "." for work in row]
        for row in table.ticks
    ]
    return [" ".join(column) for column in zip(*words, strict=True)]


def test_gpipe_written_out():
    assert written(make_sync_schedule("gpipe", 2, 3)) == [
        "f0 f1 f2 . . b0 b1 b2",
        ". f0 f1 f2 b0 b1 b2 .",
    ]


def test_1f1b_written_out():
    assert written(make_sync_schedule("1f1b", 3, 4)) == [
        "f0 . f1 . f2 b0 f3 b1 . b2 . b3",
        ". f0 . f1 b0 f2 b1 f3 b2 . b3 .",
        ". . f0 b0 f1 b1 f2 b2 f3 b3 . .",
    ]


def test_zb_h1_written_out():
    """Figure 3 of arXiv 2401.10241: the last device is furthest behind with weights."""
    assert written(make_sync_schedule("zb-h1", 3, 4)) == [
        "f0 . f1 . f2 b0 w0 f3 b1 w1 b2 w2 b3 w3",
        ". f0 . f1 b0 f2 b1 w0 f3 b2 w1 b3 w2 w3",
        ". . f0 b0 f1 b1 f2 b2 w0 f3 b3 w1 w2 w3",
    ]


def test_stages_go_round_the_devices():
    made = make_sync_schedule("interleaved", 2, 2, chunks=3)
    assert made.stages == 6
    assert [made.device_of(stage) for stage in range(6)] == [0, 1, 0, 1, 0, 1]
    first = [row[0].stage for row in made.ticks if row[0]]
    assert first[:6] == [0, 0, 2, 2, 4, 4]


def test_one_device_is_a_loop_over_microbatches():
    assert written(make_sync_schedule("1f1b", 1, 2)) == ["f0 b0 f1 b1"]
    assert make_sync_schedule("1f1b", 1, 2).bubble_fraction == 0


def test_an_evaluation_keeps_nothing():
    made = forward_only(3, 5)
    assert made.release_kind is None
    assert [made.in_flight(d) + made.live_inputs(d) for d in range(3)] == [0, 0, 0]


def test_an_evaluation_takes_any_number_of_microbatches_with_chunks():
    works = [work for row in forward_only(4, 6, chunks=2).ticks for work in row if work]
    assert len(set(works)) == len(works) == 4 * 6 * 2


def test_inputs_of_zb_h1_wait_for_the_gradient_of_weights():
    made = make_sync_schedule("zb-h1", 4, 8)
    assert made.release_kind == "weights"
    assert [made.in_flight(d) for d in range(4)] == [4, 3, 2, 1]
    assert [made.live_inputs(d) for d in range(4)] == [4, 4, 4, 4]


def test_work_says_what_it_needs():
    assert dependencies(forward(0, 3), 2) == ()
    assert dependencies(forward(1, 3), 2) == (forward(0, 3),)
    assert dependencies(backward(1, 3), 2) == (forward(1, 3),)
    assert dependencies(backward(0, 3), 2) == (forward(0, 3), backward(1, 3))
    assert dependencies(weight_gradient(0, 3), 2) == (backward(0, 3),)


def test_orders_that_wait_for_each_other_are_found():
    orders = (forward(0, 0), backward(0, 0)), (backward(1, 0), forward(1, 0))
    with pytest.raises(FatalError, match="wait for each other from tick 1 on"):
        lockstep_ticks(orders, lambda work: dependencies(work, 2))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("1f2b", 4, 8), "did you mean 1f1b"),
        (("interleave", 4, 8, 2), "did you mean interleaved"),
        (("nothing-like-it", 4, 8), "schedule=1f1b"),
        (("1f1b", 0, 8), "devices=0"),
        (("1f1b", 4, 0), "microbatches=0"),
        (("1f1b", 4, 8, 0), "chunks=0"),
        (("gpipe", 4, 8, 2), "schedule=interleaved chunks=2"),
        (("interleaved", 4, 8), "chunks=2"),
        (("interleaved", 4, 10, 2), "microbatches=8 or microbatches=12"),
        (("interleaved", 4, 3, 2), "remedy   microbatches=4"),
        (("eager-1f1b", 4, 10, 2), "microbatches=8 or microbatches=12"),
        (("zb-h1", 4, 3), "microbatches=4"),
    ],
)
def test_numbers_that_do_not_fit_are_answered(given, says):
    with pytest.raises(BadInput) as caught:
        make_sync_schedule(*given)
    assert says in str(caught.value)


def test_eager_1f1b_of_one_chunk_takes_any_number_of_microbatches():
    """Written out in beats: one tick, two, or what is left."""
    made = make_sync_schedule("eager-1f1b", 2, 3)
    assert written(made) == ["f0 f1 . f2 b0 . b1 b2", ". f0 b0 f1 b1 f2 b2 ."]
    assert [len(beat) for beat in made.supersteps] == [1, 2, 2, 2, 1]


@pytest.mark.parametrize("name", SYNC_SCHEDULES)
def test_every_schedule_has_a_table(name):
    chunks = 2 if name == "interleaved" else 1
    made = make_sync_schedule(name, 4, 8, chunks)
    assert made.name == name
    assert made.length == len(made.ticks)
