"""The context axis in a search: what small layouts tell of large ones, and which fit."""

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.planner.layouts.space import PlanChoices, plan_space
from jaxdist.planner.layouts.traffic_probes import probe_traffic


@pytest.fixture(scope="module")
def subject():
    words = ("model.depth=1", "model.vocabulary=256", "plan.mesh.data=1")
    return StepDescriber(resolve_config("characters", words).config)


@pytest.mark.parametrize("form", ["all_gather", "all_to_all", "ring"])
def test_bytes_of_four_devices_are_known_from_two(subject, form):
    device = load_cluster("testbed").device
    size = subject.profile.parameter_bytes
    base = Plan(context=form)
    probes = probe_traffic(base, 2, ("context",), subject.describe, size, device)
    assert "context" in probes.usable_axes
    plan = Plan(mesh=MeshShape(context=4), context=form)
    rows = subject.describe(plan).ledgers[0].rows
    for kind, read in probes.context_collectives.items():
        own = [x for x in rows if x.kind == kind and x.what.startswith("attention")]
        moved = sum(row.payload for row in own)
        # Permutes are taken for as many as devices, where some are one fewer.
        if kind == "collective-permute":
            assert moved < read.payload < 1.25 * moved
        else:
            assert read.payload == moved * (1 if kind == "all-gather" else 4)


def test_devices_that_leave_no_two_chunks_each_are_not_tried():
    def sizes(tokens):
        choices = PlanChoices(axes=("data", "context"))
        space = plan_space(Plan(), 24, choices, batch=24, blocks=1, tokens=tokens)
        return sorted(set(space.sizes("context")))

    assert sizes(tokens=24) == [1, 2, 3, 4, 6, 12]
    assert sizes(tokens=10) == [1]
