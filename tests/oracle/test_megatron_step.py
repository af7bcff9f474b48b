"""A Transformer's step: what its terms are made of."""

import math
from dataclasses import replace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.published.megatron.kernels import (
    MegatronRates,
    head_operations,
    layer_operations,
)
from jaxdist.oracle.published.megatron.links import (
    RankGroup,
    all_reduce_seconds,
    rank_group,
    send_seconds,
)
from jaxdist.oracle.published.megatron.model import MegatronLayout, MegatronModel
from jaxdist.oracle.published.megatron.step import megatron_step

CLUSTER = load_cluster("dgx-a100")
RATES = MegatronRates(
    matmul=0.8, memory=0.7, issue=0.0, network=0.8, inside=0.77, call=3e-5
)
GPT3 = MegatronModel(
    hidden=12288,
    heads=96,
    layers=96,
    sequence=2048,
    vocabulary=51200,
    feedforward=4 * 12288,
    head_size=128,
)
LAYOUT = MegatronLayout(tensor=8, data=1, pipe=8, batch=64, microbatch=1)


def terms(layout=LAYOUT, model=GPT3, rates=RATES):
    return megatron_step(model, layout, CLUSTER).terms(rates)


def test_parameters_are_those_of_the_publication():
    layers = GPT3.layers * GPT3.layer_parameters()
    assert layers == GPT3.layers * (12 * 12288**2 + 13 * 12288)
    assert layers + GPT3.embedding_parameters() == pytest.approx(174.6e9, rel=1e-3)


def test_flops_are_those_of_the_publication():
    b, s, n, h, v = 64, 2048, 96, 12288, 51200
    plain = 72 * b * s * n * h**2 * (1 + s / (6 * h) + v / (12 * n * h))
    assert GPT3.flops(b) == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("tensor", [1, 4, 8])
def test_kernels_do_the_flops_of_the_model(tensor):
    inner = layer_operations(GPT3, 2, tensor, sequence_parallel=False)
    outer = head_operations(GPT3, 2, GPT3.vocabulary // tensor)

    def flops(operations):
        every = [k for one in operations for k in (one.forward, *one.backward)]
        return sum(kernel.flops for kernel in every)

    done = tensor * (GPT3.layers * flops(inner) + flops(outer))
    assert done == pytest.approx(GPT3.flops(2), rel=1e-12)


def test_a_bubble_is_the_other_stages_and_chunks_divide_it():
    found = terms()
    even = sum(found[name] for name in ("forward", "backward", "send, pipe"))
    even = (even + found["all-reduce, tensor"]) / LAYOUT.microbatches
    assert 7 * even < found["bubble"] < 7.2 * even
    dealt = terms(replace(LAYOUT, chunks=3))
    sends = 2 * found["send, pipe"] / LAYOUT.microbatches * 7
    assert dealt["bubble"] == pytest.approx((found["bubble"] + sends) / 3, rel=1e-9)
    assert dealt["send, pipe"] == pytest.approx(3 * found["send, pipe"])


def test_more_microbatches_do_not_lengthen_the_bubble():
    twice = terms(replace(LAYOUT, batch=128))
    assert twice["bubble"] == pytest.approx(terms()["bubble"])
    assert twice["forward"] == pytest.approx(2 * terms()["forward"])


def test_recomputing_all_is_a_forward_pass_and_two_sums_more():
    none, full = terms(), terms(replace(LAYOUT, recompute="full"))
    assert full["recompute"] == pytest.approx(none["forward"])
    assert full["all-reduce, tensor"] == pytest.approx(1.5 * none["all-reduce, tensor"])
    some = terms(replace(LAYOUT, recompute="selective"))["recompute"]
    assert 0 < some < 0.2 * full["recompute"]


def test_the_host_is_waited_for_where_kernels_are_short():
    slow = terms(rates=replace(RATES, issue=1.0))
    ready = megatron_step(GPT3, LAYOUT, CLUSTER)
    kernels = len(ready.forward.costs) + len(ready.backward.costs)
    assert terms()["wait for the host"] == 0
    waits = slow["forward"] + slow["backward"] + slow["wait for the host"]
    least = LAYOUT.microbatches * GPT3.layers / LAYOUT.pipe * kernels
    assert waits == pytest.approx(least)


def test_faster_parts_shorten_their_terms():
    base = terms(replace(LAYOUT, data=4, batch=256))
    for name, part in (
        ("matmul", "forward"),
        ("memory", "update"),
        ("network", "all-reduce, data"),
        ("inside", "all-reduce, tensor"),
    ):
        faster = replace(RATES, **{name: 1.1 * getattr(RATES, name)})
        assert (
            terms(replace(LAYOUT, data=4, batch=256), rates=faster)[part] < base[part]
        )


def test_a_sum_is_of_the_closed_form_inside_and_between_hosts():
    host, pod = CLUSTER.levels[:2]
    size, inside = 2.0**28, host.bandwidth.value * RATES.inside
    between = pod.bandwidth.value * RATES.network
    one = all_reduce_seconds(size, rank_group(8, 1, 8), CLUSTER, RATES)
    wanted = RATES.call + 14 / 8 * size / inside + 14 * host.alpha.value
    assert one == pytest.approx(wanted)
    two = all_reduce_seconds(size, rank_group(16, 1, 8), CLUSTER, RATES)
    assert two == pytest.approx(wanted + size / between + 2 * pod.alpha.value)
    spread = all_reduce_seconds(size, rank_group(4, 8, 8), CLUSTER, RATES)
    ring = 6 / 4 * size * 8 / between + 6 * pod.alpha.value
    assert spread == pytest.approx(RATES.call + ring)
    assert all_reduce_seconds(size, rank_group(1, 8, 8), CLUSTER, RATES) == 0


@pytest.mark.parametrize(
    (
        "ranks",
        "size",
        "measured",
    ),  # seconds; NCCL on A100s of one host, vTrain's tables
    [
        (8, 2**20, 92.79e-6),
        (8, 2**26, 579.9e-6),
        (8, 2**30, 8.193e-3),
        (4, 2**20, 51.4e-6),
        (4, 2**28, 1.929e-3),
        (2, 2**22, 61.18e-6),
    ],
)
def test_sums_take_what_nccl_was_measured_to_take(ranks, size, measured):
    found = all_reduce_seconds(
        size,
        RankGroup(ranks_per_host=ranks, hosts=1, groups_per_host=1),
        CLUSTER,
        RATES,
    )
    assert found == pytest.approx(measured, rel=0.2)


def test_devices_of_a_host_share_its_links_where_they_send_at_once():
    alone, all_at_once = (send_seconds(2.0**24, n, CLUSTER, RATES) for n in (1, 8))
    fixed = RATES.call + CLUSTER.levels[1].alpha.value
    assert (all_at_once - fixed) == pytest.approx(8 * (alone - fixed))
    assert send_seconds(2.0**24, 0, CLUSTER, RATES) < alone


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (replace(LAYOUT, tensor=5), "96 heads are not split over 5"),
        (replace(LAYOUT, pipe=7), "96 layers are not split over 7"),
        (replace(LAYOUT, pipe=8, chunks=5), "96 layers are not split over 40"),
    ],
)
def test_a_split_that_leaves_a_rest_is_refused(layout, said):
    with pytest.raises(BadInput, match=said):
        megatron_step(GPT3, layout, CLUSTER)


def test_matmuls_of_odd_sides_are_slower():
    odd = replace(GPT3, vocabulary=51201)
    one = replace(LAYOUT, tensor=1)
    assert terms(one, odd)["embedding, head"] > 1.3 * terms(one)["embedding, head"]
    assert math.isfinite(sum(terms(one, odd).values()))


def test_stages_that_are_alike_may_be_written_down():
    written = replace(LAYOUT, stage_layers=(12,) * 8)
    assert terms(written) == pytest.approx(terms(), rel=1e-12)


def test_the_slowest_of_uneven_stages_is_the_beat():
    even = terms()
    uneven = terms(replace(LAYOUT, stage_layers=(12, 12, 20, 12, 12, 12, 12, 4)))
    assert uneven["forward"] / even["forward"] == pytest.approx(20 / 12)
    assert uneven["embedding, head"] == pytest.approx(0, abs=1e-9)
    # All layers are done by somebody: beat and bubble together keep their sum.
    m = LAYOUT.microbatches
    inside = ("forward", "recompute", "backward", "all-reduce, tensor")
    inside += ("wait for the host", "send, pipe", "embedding, head")

    def whole(found):
        beat = sum(found[name] for name in inside) / m
        return found["bubble"] + beat

    assert whole(uneven) == pytest.approx(whole(even), rel=1e-9)
    assert sum(uneven.values()) > sum(even.values())


@pytest.mark.parametrize(
    "layers", [{"stage_layers": (48, 48)}, {"stage_layers": (12,) * 8, "chunks": 2}]
)
def test_uneven_stages_are_one_for_each_device_of_pipe(layers):
    with pytest.raises(BadInput, match="stages"):
        replace(LAYOUT, **layers)
