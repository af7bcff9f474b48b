"""The terms of ParaDL's strategies: sizes, closed forms, slices, input, memory."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.published.paradl.case import ParadlCase, parse_strategy
from jaxdist.oracle.published.paradl.memory import memory_by_term
from jaxdist.oracle.published.paradl.networks import find_workload
from jaxdist.oracle.published.paradl.slices import LayerSplit, compute_by_kind
from jaxdist.oracle.published.paradl.step import (
    FittedRates,
    add_input_terms,
    balance_stages,
    paradl_step_terms,
)
from jaxdist.oracle.published.paradl.system import paradl_system

ABCI = paradl_system(load_cluster("abci"))
RATES = FittedRates(all_reduce=0.5, staging=0.9, map_dense=2.5e8)


def case(model, split, devices, group, batch, **more):
    return ParadlCase(
        workload=find_workload(model),
        split=split,
        devices=devices,
        group=group,
        group_batch=batch,
        **more,
    )


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        # ParaDL's tool counts as many; its ResNet50 has no shortcuts and no norms.
        ("vgg16", 169_801_408),
        ("alexnet", 62_367_776),
        ("cosmoflow", 2_128_064),
        ("resnet50", 22_734_016 + 2_768_896 + 53_120),
    ],
)
def test_networks_have_the_weights_of_those_that_were_trained(model, weights):
    assert case(model, "", 1, 1, 1).weight_count == weights


def test_flops_and_halos_of_a_network_are_those_of_its_shapes():
    layers = find_workload("vgg16").layers()
    assert sum(layer.flops for layer in layers) == pytest.approx(32.589e9, rel=1e-4)
    # A row of 226 x 3 in and one of 226 x 64 of slopes back; no halo where 2 x 2
    # windows do not overlap.
    assert layers[0].halo == 226 * 3 + 226 * 64
    assert [layer.halo for layer in layers if layer.kind == "pool"] == [0] * 5


def test_data_parallel_is_compute_and_a_ring():
    found = paradl_step_terms(case("vgg16", "", 64, 1, 32), ABCI, RATES)
    ring = 2 * 63 * (40.31e-6 + 4 * 169_801_408 / 64 / (0.5 * 12.5e9))
    assert found["gradients"] == pytest.approx(ring)
    assert sum(found.values()) == pytest.approx(0.26209 + ring, rel=1e-4)


def test_positions_share_out_the_time_and_features_do_not():
    layers, serial = find_workload("resnet50").layers(), 2.9e-3
    whole = compute_by_kind(layers, serial, 64, LayerSplit(), ABCI)
    spatial = compute_by_kind(layers, serial, 64, LayerSplit(spatial_devices=4), ABCI)
    features = compute_by_kind(layers, serial, 64, LayerSplit(feature_devices=4), ABCI)
    more = compute_by_kind(layers, serial, 64, LayerSplit(feature_devices=32), ABCI)
    assert sum(whole.values()) == pytest.approx(64 * serial)
    assert spatial["norm"] == pytest.approx(whole["norm"] / 4)
    assert spatial["conv"] == pytest.approx(whole["conv"] / 4, rel=0.1)
    assert features["norm"] == whole["norm"]
    # 53 convolutions are called, and 4 devices do not compute 4 times as fast.
    assert features["conv"] > whole["conv"] / 4 + 53e-3
    assert sum(more.values()) > 0.4 * sum(features.values())


def test_channels_cost_more_passes_than_filters():
    told = {
        split: paradl_step_terms(case("vgg16", split, 32, 32, 32), ABCI, RATES)[
            "gathers"
        ]
        for split in ("filter", "channel")
    }
    outputs = 4 * 32 * 13_939_200
    convs = 13 * 40.31e-6
    assert told["filter"] == pytest.approx(2 * 31 * (convs + outputs / 32 / 12.5e9))
    assert told["channel"] > 1.1 * told["filter"]


def test_activations_through_hosts_take_longer_than_between_devices():
    direct = paradl_step_terms(case("resnet50", "filter", 8, 4, 64), ABCI, RATES)
    staged = paradl_step_terms(
        case("resnet50", "filter", 8, 4, 64, transport="hosts"), ABCI, RATES
    )
    assert staged["gathers"] > 20 * direct["gathers"]
    assert {n: s for n, s in staged.items() if n != "gathers"} == {
        n: s for n, s in direct.items() if n != "gathers"
    }


def test_what_is_gathered_is_copied_three_times_there_and_back():
    told = paradl_step_terms(case("vgg16", "filter", 8, 4, 32), ABCI, RATES)
    outputs = 4 * 32 * 13_939_200
    assert told["copies"] == pytest.approx(12 * outputs / (0.88 * 900e9))


def test_sums_between_groups_are_crowded_beyond_a_leaf_switch():
    near = paradl_step_terms(case("resnet50", "spatial", 68, 4, 64), ABCI, RATES)
    far = paradl_step_terms(case("resnet50", "spatial", 72, 4, 64), ABCI, RATES)
    ratio = far["gradients between groups"] / near["gradients between groups"]
    assert ratio == pytest.approx(2, rel=0.05)
    assert far["halos"] == near["halos"]


def test_overlap_hides_gradients_behind_the_backward_pass():
    hiding = replace(ABCI, overlap=SourcedNumber(1.0, "given: a test"))
    one = case("vgg16", "", 64, 1, 32)
    plain, hidden = (
        paradl_step_terms(one, ABCI, RATES),
        paradl_step_terms(one, hiding, RATES),
    )
    work = sum(s for name, s in plain.items() if name.startswith("compute"))
    assert hidden["gradients"] == pytest.approx(plain["gradients"] - work * 2 / 3)


def test_a_step_waits_for_the_reader_of_its_samples_and_for_no_one_else():
    # A reader is as fast as ResNet50 on one device needs; AlexNet computes faster.
    terms = {"compute, conv": 0.3}
    rate = 64 / 0.18384
    for devices in (1, 64, 1024):
        one = case("alexnet", "", devices, 1, 512)
        told = add_input_terms(one, ABCI, RATES, terms)
        pixels = 3 * 227 * 227 / (3 * 226 * 226)
        assert sum(told.values()) == pytest.approx(512 * pixels / rate)
    slow = {"compute, conv": 0.184}
    resnet = case("resnet50", "", 1024, 1, 64)
    assert add_input_terms(resnet, ABCI, RATES, slow) == slow


def test_samples_are_broadcast_in_a_group_and_read_by_one_process():
    images, volume = (
        case("resnet50", "spatial", 4, 4, 64),
        case("cosmoflow", "spatial", 4, 4, 1),
    )
    told = [
        add_input_terms(one, ABCI, RATES, {"compute, conv": 1.0})
        for one in (images, volume)
    ]
    sizes = 4 * 64 * 3 * 226 * 226, 4 * 4 * 512**3
    for size, terms in zip(sizes, told, strict=True):
        assert terms["scatter"] == pytest.approx(size * 3 / 4 * 3 * 2 / (0.9 * 16e9))
    # A volume takes ten seconds to read, and images of a step fifth of one.
    assert "input" not in told[0]
    read = sizes[1] / (64 * 4 * 3 * 226 * 226 / 0.18384)
    assert sum(told[1].values()) == pytest.approx(read)


def test_dense_layers_that_read_a_map_cost_their_weights_for_each_sum_of_a_group():
    name = "dense layers that read a map"

    def seconds(model, split, devices, group, transport="hosts"):
        one = case(model, split, devices, group, 32, transport=transport)
        return paradl_step_terms(one, ABCI, RATES).get(name, 0.0)

    vgg, alexnet = 4 * 512 * 8 * 8 * 4096, 4 * 256 * 6 * 6 * 4096
    assert seconds("vgg16", "spatial", 4, 4) == pytest.approx(vgg / 2.5e8)
    assert seconds("alexnet", "spatial", 4, 4) == pytest.approx(alexnet / 2.5e8)
    # Runs of hybrids sum in the group and over all, at any number of groups.
    for devices in (8, 64, 1024):
        twice = seconds("vgg16", "spatial", devices, 4)
        assert twice == pytest.approx(2 * vgg / 2.5e8)
    assert seconds("vgg16", "spatial", 32, 4, "devices") == pytest.approx(vgg / 2.5e8)
    assert seconds("vgg16", "filter", 32, 32) == pytest.approx(vgg / 2.5e8)
    # No split, features within hosts, and networks that average their map first.
    assert seconds("vgg16", "", 32, 1) == seconds("vgg16", "filter", 32, 4) == 0
    assert seconds("resnet50", "spatial", 4, 4) == 0
    assert seconds("cosmoflow", "spatial", 4, 4) == 0


def test_stages_are_the_best_of_all_cuts():
    seconds = [5.0, 1.0, 2.0, 7.0, 3.0, 3.0, 4.0, 1.0]
    for stages in (1, 2, 3, 5, 8):
        ways = []
        for inner in combinations(range(1, len(seconds)), stages - 1):
            ends = (0, *inner, len(seconds))
            ways.append(max(sum(seconds[a:b]) for a, b in pairwise(ends)))
        found = balance_stages(seconds, stages)
        assert [part.stop for part in found[:-1]] == [part.start for part in found[1:]]
        assert max(sum(seconds[p.start : p.stop]) for p in found) == min(ways)


def test_segments_fill_a_pipeline():
    told = [
        paradl_step_terms(case("vgg16", "layer", 4, 4, 32, segments=n), ABCI, RATES)
        for n in (1, 16)
    ]
    assert told[0]["bubble"] == pytest.approx(3 * told[0]["compute, stages"])
    assert told[1]["bubble"] == pytest.approx(3 / 16 * told[1]["compute, stages"])
    # 2 (p + S - 2) messages of the widest cut, some 1 to 13 MB for 2 samples.
    hops = told[1]["messages"] / (2 * (4 + 16 - 2))
    sizes = {4 * 2 * layer.outputs for layer in find_workload("vgg16").layers()}
    assert any(hops == pytest.approx(9e-6 + size / 50e9) for size in sizes)


def test_memory_counts_activations_once_and_the_optimizer():
    told = memory_by_term(case("vgg16", "", 8, 1, 32), ABCI)
    outputs = sum(layer.outputs for layer in find_workload("vgg16").layers())
    assert told["activations"] == 4 * 32 * outputs
    assert told["parameters"] == told["optimizer"] == 4 * 169_801_408
    spatial = memory_by_term(case("vgg16", "spatial", 8, 4, 32), ABCI)
    assert spatial["activations"] == told["activations"] / 4
    convs = 14_710_464
    features = memory_by_term(case("vgg16", "filter", 8, 4, 32), ABCI)
    assert features["parameters"] == 4 * (169_801_408 - convs * 3 / 4)
    assert memory_by_term(case("vgg16", "", 1, 1, 32), ABCI)["buffers"] == 0


def test_strategies_are_read_in_any_order_and_unknown_ones_refused():
    assert parse_strategy("data") == (True, "")
    assert (
        parse_strategy("filter+data")
        == parse_strategy("data+filter")
        == (True, "filter")
    )
    assert parse_strategy("pipeline") == (False, "layer")
    with pytest.raises(BadInput, match="spatail") as refused:
        parse_strategy("spatail")
    assert "spatial" in str(refused.value.remedy)
    with pytest.raises(BadInput, match="groups of 4"):
        case("vgg16", "spatial", 6, 4, 32)
    with pytest.raises(BadInput, match="no layers of resnet51"):
        find_workload("resnet51")
