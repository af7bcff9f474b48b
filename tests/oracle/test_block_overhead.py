"""Whole blocks: where they were timed, a step's compute is what they took."""

from dataclasses import replace

import numpy as np
import pytest

from jaxdist.core.cluster.kernel_timings import (
    BlockTiming,
    BlockTimings,
    block_signature,
)
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compute_times import (
    ACCUMULATION_PASSES,
    stage_compute_times,
    step_layer_times,
)
from jaxdist.oracle.predict import predict
from jaxdist.planner.layouts.block_costs import BlockCosts

TESTBED = load_cluster("testbed")
FORWARD, BACKWARD, KEPT = 2e-3, 5e-3, 1e6
"""Of every block, on every number of samples that is asked for."""


def timed(profile, *names, samples=(4.0, 16.0, 64.0, 256.0)):
    """The testbed, on which these blocks take the same on all numbers of samples."""
    rows = tuple(
        BlockTiming(
            key=block_signature(profile, name),
            samples=some,
            forward_s=FORWARD,
            backward_s=BACKWARD,
            kept=KEPT,
        )
        for name in names
        for some in samples
    )
    peak = TESTBED.device.peak("float32").value
    blocks = BlockTimings(origin="measured: a test", peak=peak, timed=rows)
    return replace(TESTBED, device=replace(TESTBED.device, blocks=blocks))


def names_of(subject):
    return [block.name for block in subject.profile.blocks]


def summing(case, device):
    """What adding up gradients takes, of all microbatches' weights."""
    return (
        ACCUMULATION_PASSES
        * case.profile.parameter_bytes
        / device.memory_bandwidth.value
    )


@pytest.mark.parametrize("sizes", [{}, {"data": 4}, {"data": 2, "fsdp": 2}])
def test_a_network_in_one_piece_takes_what_its_blocks_took(digits, sizes):
    case = digits.describe(Plan(mesh=MeshShape(**sizes), microbatches=1))
    cluster = timed(case.profile, *names_of(digits))
    (spent,) = stage_compute_times(case, cluster)
    blocks = len(case.profile.blocks)
    # The ledger's work of a device is within a thousandth of its part of the FLOPs.
    assert spent.forward == pytest.approx(blocks * FORWARD, rel=1e-3)
    assert spent.backward == pytest.approx(blocks * BACKWARD, rel=1e-3)


def test_stages_copy_what_they_keep(digits):
    """On the way forward, beside what adding up gradients takes."""
    case = digits.describe(Plan(mesh=MeshShape(pipe=2), microbatches=4))
    cluster = timed(case.profile, *names_of(digits), samples=(30.0,))
    device = cluster.device
    copied = 2 * KEPT / device.memory_bandwidth.value
    part = case.profile.batch / 4 / 30
    spent = stage_compute_times(case, cluster)
    blocks = [len(names) for names in case.stages]
    forward = [n * part * (FORWARD + copied) for n in blocks]
    assert [one.forward for one in spent] == pytest.approx(forward, rel=1e-3)
    backward = sum(one.backward for one in spent) - summing(case, device)
    assert backward == pytest.approx(sum(blocks) * part * BACKWARD, rel=1e-3)


def test_layers_of_other_blocks_stay_as_they_are(digits):
    case = digits.describe(Plan(mesh=MeshShape(data=4), microbatches=1))
    first, *others = names_of(digits)
    plain = step_layer_times(case, TESTBED)
    found = step_layer_times(case, timed(case.profile, first))
    of_block = {layer.name: layer.block for layer in case.profile.layers}
    late = 1 + TESTBED.jitter.value
    total = sum(s.forward for name, s in found.items() if of_block[name] == first)
    assert total == pytest.approx(late * FORWARD)
    for name, block in of_block.items():
        if block in others:
            assert found[name] == plain[name]


def test_layers_that_were_measured_themselves_stay_as_they_are(digits):
    case = digits.describe(Plan(mesh=MeshShape(data=4), microbatches=1))
    cluster = timed(case.profile, *names_of(digits))
    own = {"seconds_forward": 1.0, "seconds_backward": 1.0}
    layers = tuple(replace(layer, **own) for layer in case.profile.layers)
    measured = replace(case, profile=replace(case.profile, layers=layers))
    plain = stage_compute_times(measured, TESTBED)
    assert stage_compute_times(measured, cluster) == plain


def test_half_of_a_divided_layer_takes_as_much_longer(digits):
    """Blocks were timed whole: the ratio to their layers holds for parts of these."""
    whole = digits.describe(Plan(mesh=MeshShape(), microbatches=1))
    half = digits.describe(Plan(mesh=MeshShape(tensor=2), microbatches=1))
    cluster = timed(whole.profile, *names_of(digits))

    def longer(case):
        plain, found = step_layer_times(case, TESTBED), step_layer_times(case, cluster)
        some = [name for name, pair in plain.items() if pair.forward]
        return {name: found[name].forward / plain[name].forward for name in some}

    assert step_layer_times(half, TESTBED) != step_layer_times(whole, TESTBED)
    assert longer(half) == pytest.approx(longer(whole))
    assert len({round(ratio, 6) for ratio in longer(half).values()}) > 2


def test_the_table_of_parts_has_what_blocks_took(digits):
    """Hybrid plans are ordered by it."""
    case = digits.describe(Plan(mesh=MeshShape(data=4), microbatches=1))
    device = timed(case.profile, *names_of(digits)).device
    pieces = BlockCosts(profile=case.profile, device=device, dtype="float32")
    forward, backward = pieces.block_seconds(4, 1)
    np.testing.assert_allclose(forward, FORWARD, rtol=1e-3)
    np.testing.assert_allclose(backward, BACKWARD, rtol=1e-3)


def test_a_prediction_says_where_they_are_from(digits):
    case = digits.describe(Plan(mesh=MeshShape(data=4), microbatches=1))
    said = predict(case, timed(case.profile, *names_of(digits)))
    assert said.provenance["device.blocks"] == "measured: a test"
    assert "device.blocks" not in predict(case, TESTBED).provenance
