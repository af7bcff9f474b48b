"""Activations on the host: their bytes, and what of their copies computing hides."""

from dataclasses import replace

import pytest

from jaxdist.core.cluster.device import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.memory import device_memory, trace_predicts_memory
from jaxdist.oracle.offload import (
    has_loops,
    host_activation_bytes,
    host_copy_seconds,
    repeated_blocks,
)
from jaxdist.oracle.predict import predict

TPU = load_cluster("tpu-v5p")
BLOCKS = ("block0", "block1", "block2", "block3")
TOKENS, HIDDEN, EMBED = 16 * 16 // 2, 64, 32
"""Of a device."""


@pytest.fixture(scope="module")
def subject():
    words = (
        *("model.size=tiny", "model.depth=4", "data.name=synthetic", "data.batch=16"),
        *("data.context=16", "precision=bfloat16", "plan.mesh.data=1"),
    )
    return StepDescriber(resolve_config("llama", words).config, "tpu")


def plan(**settings):
    return Plan(mesh=MeshShape(data=2), microbatches=1, **settings)


def test_equal_blocks_are_found_though_one_lists_what_they_share(subject):
    assert repeated_blocks(subject.profile) == (BLOCKS,)
    assert has_loops(plan(), subject.profile)
    assert not has_loops(plan(scan="off"), subject.profile)


@pytest.mark.parametrize(
    ("patterns", "elements"),
    [
        (("*.mlp.up",), 4 * TOKENS * HIDDEN),
        (("*.mlp.up", "block[01].mlp.gate"), 6 * TOKENS * HIDDEN),
        (BLOCKS, 4 * TOKENS * EMBED),
        # Behind the loop nothing is moved.
        (("*.norm", "*.mlp.up"), 4 * TOKENS * HIDDEN),
    ],
    ids=str,
)
def test_bytes_on_the_host_are_those_of_the_layers(subject, patterns, elements):
    case = subject.describe(plan(offload=patterns))
    moved = host_activation_bytes(case, TPU.device)
    assert moved == 2 * elements
    kept = device_memory(subject.describe(plan()), TPU.device)["activations"]
    assert device_memory(case, TPU.device)["activations"] == kept - moved


def linked(bytes_per_second):
    number = SourcedNumber(bytes_per_second, "assumed: a test")
    return replace(TPU, host_link=number)


def test_a_copy_that_is_shorter_than_computing_is_hidden(subject):
    case = subject.describe(plan(offload=("*.mlp.up",)))
    took = host_activation_bytes(case, TPU.device) / 1e15
    assert host_copy_seconds(case, linked(1e15)) == (0.0, pytest.approx(2 * took))
    found = predict(case, linked(1e15))
    assert found.step_s == predict(subject.describe(plan()), TPU).step_s
    assert found.overlapped_s["offload"] == pytest.approx(2 * took)


def test_what_computing_does_not_hide_is_a_part_of_the_step(subject):
    case = subject.describe(plan(offload=("*.mlp.up",)))
    took = host_activation_bytes(case, TPU.device) / 1e3
    exposed, hidden = host_copy_seconds(case, linked(1e3))
    assert exposed + hidden == pytest.approx(2 * took)
    found, plain = predict(case, linked(1e3)), predict(subject.describe(plan()), TPU)
    assert found.step_s == pytest.approx(plain.step_s + exposed)


def test_activations_must_fit_into_the_hosts_memory(subject):
    case = subject.describe(plan(offload=("*.mlp.up",)))
    moved = host_activation_bytes(case, TPU.device)
    for room, fits in ((4 * moved, True), (4 * moved - 4, False)):
        host = SourcedNumber(float(room), "assumed: a test")
        assert predict(case, replace(TPU, host_memory=host)).fits == fits


def test_a_machine_without_a_host_link_is_refused(subject):
    case = subject.describe(plan(offload=("*.mlp.up",)))
    with pytest.raises(BadInput, match="how fast a device reaches its host"):
        predict(case, replace(TPU, host_link=None))


def test_the_trace_tells_the_memory_of_loops_that_compute_again(subject):
    again = plan(remat=True)
    assert trace_predicts_memory(again, TPU.device, subject.profile)
    unrolled = replace(again, scan="off")
    assert not trace_predicts_memory(unrolled, TPU.device, subject.profile)


def test_the_traced_peak_is_without_what_is_on_the_host():
    words = (
        *("model.size=tiny", "model.depth=4", "model.embed=256", "model.heads=2"),
        *("model.context=128", "data.name=synthetic", "data.batch=16"),
        *("data.context=128", "precision=bfloat16", "plan.mesh.data=1"),
    )
    subject = StepDescriber(resolve_config("llama", words).config, "tpu")
    sizes = [
        subject.describe_traced(plan(offload=patterns)).traced_bytes["temporaries"]
        for patterns in ((), ("*.mlp.up", "*.mlp.gate"))
    ]
    moved = 2 * 4 * (8 * 128) * (4 * 256) * 2
    # The block whose backward pass runs has its own.
    assert moved / 2 <= sizes[0] - sizes[1] <= moved
