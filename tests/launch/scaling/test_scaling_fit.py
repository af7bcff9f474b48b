"""The parts of a step that a scaling study fits are found exactly, or not at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.launch.scaling.fit import ScalingFit, ScalingFitFailure, ScalingPoint, fit

SENT = {
    "ring": lambda p, size: 2 * size * (p - 1) / p,
    "parameter_server": lambda p, size: 2 * size * (p - 1),
}
COUNTS = (1, 2, 4, 8)
SIZE = 310_000


def points(
    parts, *, way="ring", batches=(64, 256), counts=COUNTS, cores=64, scaling="strong"
):
    """Return the steps that these parts would take."""
    serial, parallel, communication = parts
    found = []
    for batch in batches:
        for count in counts:
            each = batch / count if scaling == "strong" else batch
            one = ScalingPoint(
                processes=count,
                each=each,
                sent_bytes=SENT[way](count, SIZE),
                seconds=1.0,
                cores=cores,
            )
            busy = each * count / min(count, cores)
            seconds = serial + parallel * busy + communication * one.sent_bytes
            found.append(replace(one, seconds=seconds))
    return found


def a_part(low, high):
    return st.one_of(st.just(0.0), st.floats(low, high))


class TestFit:
    @given(
        serial=st.floats(1e-4, 1.0),
        parallel=a_part(1e-6, 1e-2),
        communication=a_part(1e-11, 1e-6),
        way=st.sampled_from(sorted(SENT)),
        cores=st.sampled_from([1, 2, 64]),
        scaling=st.sampled_from(["strong", "weak"]),
    )
    def test_it_finds_the_parts_that_made_the_points(
        self, serial, parallel, communication, way, cores, scaling
    ):
        parts = serial, parallel, communication
        made = points(parts, way=way, cores=cores, scaling=scaling)
        found = fit(made)
        longest = max(point.seconds for point in made)
        for point in made:
            own = (
                serial,
                parallel * point.samples_per_core,
                communication * point.sent_bytes,
            )
            assert list(found.component_seconds(point).values()) == pytest.approx(
                own, abs=1e-9 * longest
            )
        assert found.rms_residual < 1e-9 * longest
        assert found.max_relative_error < 1e-6

    def test_points_that_do_not_fit_leave_a_residual(self):
        made = points((1e-3, 1e-4, 1e-8))
        off = replace(made[0], seconds=2 * made[0].seconds)
        found = fit([off, *made[1:]])
        assert found.rms_residual > 1e-4
        assert found.max_relative_error > 0.05

    def test_no_part_is_below_zero(self):
        faster = [
            replace(point, seconds=0.1 / point.processes**2)
            for point in points((0, 1e-3, 0))
        ]
        found = fit(faster)
        parts = found.serial, found.parallel, found.communication
        assert min(parts) >= 0

    def test_a_ring_and_one_batch_do_not_tell_the_parts_apart(self):
        # 2 (p-1)/p is 2 less 2/p: a mixture of the serial and the parallel part.
        alike = fit(points((1e-3, 1e-4, 1e-8), batches=(64,)))
        assert isinstance(alike, ScalingFitFailure)
        assert "--batch" in alike.remedy
        server = points((1e-3, 1e-4, 1e-8), batches=(64,), way="parameter_server")
        assert isinstance(fit(server), ScalingFit)

    def test_fewer_points_than_unknowns_are_no_fit(self):
        few = fit(points((1e-3, 1e-4, 1e-8), batches=(64,), counts=(1, 2)))
        assert few.reason == "2 points for 3 unknowns"

    def test_as_many_points_as_unknowns_check_nothing(self):
        way = "parameter_server"
        made = points((1e-3, 1e-4, 1e-8), batches=(64,), counts=(1, 2, 4), way=way)
        assert fit(made).degrees_of_freedom == 0
