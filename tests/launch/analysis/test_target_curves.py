"""Devices that are not here, calibrated by what their compiler estimates."""

import json
from dataclasses import replace

import pytest

from jaxdist.calibrate.compiled_networks import CompiledNetwork, layer_scope
from jaxdist.launch.analysis.target_curves import (
    NetworkAnswer,
    calibrate_target,
    compile_network,
    fit_device,
    score_network,
)
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.meshes.targets.compilers import prepare_compilation
from jaxdist.meshes.targets.target import host_target
from jaxdist.oracle.predict import predict

BANDWIDTH = 1e12
ALONE = ("plan.mesh.data=4", "plan.mesh.spatial_h=1", "precision=bfloat16")
NETWORKS = {
    "digits": ("digits", *ALONE),
    "resnet50": ("resnet50", "model.size=tiny", "data.name=synthetic", *ALONE),
    "llama": ("llama", "model.size=tiny", "data.context=16", "data.batch=8", *ALONE),
}


def made_up_seconds(layer, parts):
    """Times of a layer that equal layers share, of both passes."""
    if (kernel := layer.kernel) is None:
        size = (layer.output_bytes + layer.inner_bytes) / parts
        return 3 * size / BANDWIDTH, 5 * size / BANDWIDTH
    work = kernel.uses / parts * kernel.taps * kernel.inputs * kernel.outputs
    # Layers that read the input have one gradient of two.
    count = min(1.0, layer.flops_backward / layer.flops_forward / 2)
    return work**0.7 * 1e-9, count * work**0.8 * 1e-9


@pytest.fixture(scope="module", params=NETWORKS)
def answer(request):
    """A network with times that were made up."""
    experiment, *words = NETWORKS[request.param]
    config = resolve_config(experiment, [*words, "data.name=synthetic"]).config
    describer = StepDescriber(config, "tpu")
    parts = config.plan.mesh.devices
    seconds = {
        layer.name: made_up_seconds(layer, parts)
        for layer in describer.profile.layers
        if layer.flops or layer.output_bytes + layer.inner_bytes
    }
    case = describer.describe(config.plan)
    state = case.state_bytes["parameters"] + case.state_bytes["optimizer"]
    network = CompiledNetwork(
        name=request.param,
        profile=describer.profile,
        parts=parts,
        state_bytes=state,
        layer_seconds={**seconds, "": (1.5e-6, 2.5e-6)},
        update_s=4.5e-6,
    )
    return NetworkAnswer(network=network, describer=describer, step=None)


def calibrated(answer):
    target = host_target("tpu-v5p")
    return replace(
        target.cluster, device=fit_device(target, [answer.network], (BANDWIDTH, 1e-7))
    )


@pytest.mark.laws
def test_what_was_compiled_is_predicted(answer):
    """Kernels, layers of other kinds, the loss and the update take what they took."""
    score = score_network(answer, calibrated(answer))
    assert score.compiled_s == pytest.approx(answer.network.step_s)
    # A ledger has the FLOPs of products alone, a profile those of biases as well: a
    # device's part of a layer is a fourth to a hundredth.
    assert score.predicted_s == pytest.approx(score.compiled_s, rel=0.01)
    assert score.layer_error < 0.01
    assert score.median_layer_error < 0.01


def test_a_prediction_has_them(answer, tmp_path):
    """Through the cluster's file, as `predict --cluster` reads it."""
    path = tmp_path / "mine.json"
    path.write_text(calibrated(answer).to_json())
    cluster = load_cluster(str(path))
    case = answer.describer.describe(answer.describer.config.plan)
    found = predict(case, cluster)
    both = found.terms_s["compute"] + found.terms_s["update"]
    assert both == pytest.approx(answer.network.step_s, rel=0.01)
    assert found.provenance["device.layers"].startswith("fitted: cycles")


def test_what_a_layer_is_off_by_is_its_own():
    scopes = {"block0", "block0.mlp.up", ""}
    assert layer_scope("block0.mlp.up", scopes) == "block0.mlp.up"
    assert layer_scope("block0.attention", scopes) == "block0"
    assert layer_scope("head.norm", scopes) is None


@pytest.mark.parametrize("chip", ["h100", "tpu-v5p:2x2x2", "tpu-v9"])
def test_a_chip_without_estimates_is_refused(chip, job, tmp_path):
    path = tmp_path / "mine.json"
    code, _, err = job.call("calibrate", "target", chip, "-o", path)
    assert code == 2
    assert "no compiler estimates cycles" in err
    assert "jaxdist calibrate target tpu-v4" in err
    assert not path.exists()


@pytest.mark.target
@pytest.mark.timeout(600)
def test_networks_are_calibrated_by_a_real_compiler(tmp_path):
    target = host_target("tpu-v5p")
    prepare_compilation(target)
    words = ("characters", "data.name=synthetic", "model.vocabulary=64")
    words += ("model.context=128", "model.depth=2")
    wider = (*words, "model.embed=256", "model.hidden=768")
    found = [compile_network(one, target, None) for one in (words, wider)]
    made = calibrate_target(target, found, tmp_path / "v5p.json")
    device = made.cluster.device
    # A read and a write of memory that a data sheet has at 2,765 GB/s.
    assert 0.3 < device.memory_bandwidth.value / 2765e9 <= 1
    # Four shapes of products at each width: square, up, down, and the logits.
    assert len(device.kernels.timed) == 8
    kinds = {one.kind for one in device.layers.timed}
    assert kinds >= {"RMSNorm", "Attention", "Block", "loss", "update"}
    for score in made.scores:
        assert 0.5 < score.predicted_s / score.compiled_s < 2
    assert json.loads(json.dumps(made.to_dict()))["kernels"] == len(
        device.kernels.timed
    )
