"""A Transformer's step under FSDP: its work, its collectives, and what overlaps."""

from dataclasses import replace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.published.fsdp import layers
from jaxdist.oracle.published.fsdp.cards import FSDP_CARDS
from jaxdist.oracle.published.fsdp.layers import (
    FsdpRates,
    block_operations,
    head_operations,
    pass_work,
)
from jaxdist.oracle.published.fsdp.ring import ring_seconds
from jaxdist.oracle.published.fsdp.step import FsdpLayout, FsdpStep
from jaxdist.oracle.published.megatron.links import rank_group
from jaxdist.oracle.published.megatron.model import MegatronModel

A100, H100 = (FSDP_CARDS[name].cluster for name in ("a100_80", "h100"))
RATES = FsdpRates(
    matmul=0.8, attention=0.4, interference=0.5, memory=0.7, inside=0.77, network=0.8
)
COLLECTIVES = ("all-gather", "reduce-scatter")


def network(hidden=4096, heads=32, blocks=32, sequence=2048):
    return MegatronModel(
        hidden=hidden,
        heads=heads,
        layers=blocks,
        sequence=sequence,
        vocabulary=50368,
        feedforward=4 * hidden,
        head_size=hidden // heads,
    )


LAYOUT = FsdpLayout(
    devices=8,
    batch=48,
    microbatch=6,
    passes=1,
    zero=3,
    reduce_bytes=4,
    state_bytes=4,
    remat=False,
)


def terms(layout=LAYOUT, model=None, cluster=H100, rates=RATES):
    return FsdpStep(model=model or network(), layout=layout, cluster=cluster).terms(
        rates
    )


@pytest.mark.parametrize(
    ("sizes", "published"),
    [
        ((768, 12, 12, 1024), 124_525_056),
        ((4096, 32, 32, 2048), 6_658_859_008),
        ((7168, 56, 48, 8192), 30_019_254_272),
    ],
)
def test_parameters_are_the_published_ones(sizes, published):
    step = FsdpStep(model=network(*sizes), layout=LAYOUT, cluster=A100)
    blocks = step.model.layers * step.block_parameters
    assert blocks + step.root_parameters == published


def test_matmuls_do_the_flops_of_the_model(monkeypatch):
    monkeypatch.setattr(layers, "FILL_SIDE", 0)
    model, samples = network(), 3
    blocks = [pass_work(block_operations(model, samples))] * model.layers
    every = [one for pair in blocks for one in pair]
    every += pass_work(head_operations(model, samples))
    done = sum(one.matmul for one in every)
    # Half of the scores and sums of attention: what is ahead of a token is left out.
    attention = 3 * samples * model.layers * 4 * model.sequence**2 * model.hidden
    assert done == pytest.approx(model.flops(samples) - attention, rel=1e-12)
    assert sum(one.attention for one, _ in blocks) == attention / 6


def test_wide_matmuls_lose_less_in_tiles():
    def share(hidden):
        forward, _ = pass_work([layers.dense(4096, hidden, hidden)])
        return 2 * 4096 * hidden**2 / forward.matmul

    assert share(768) == pytest.approx(1 / (1 + 2 * 256 / 768))
    assert share(768) < share(2048) < share(8192) < 1


def test_a_ring_takes_the_links_that_are_slowest():
    size, rates = 1e9, replace(RATES, inside=1.0, network=1.0)
    one, two = (ring_seconds(size, rank_group(n, 1, 8), A100, rates) for n in (8, 16))
    assert one == pytest.approx(8.4e-6 + 7 * 3.4e-6 + 7 / 8 * size / 300e9)
    # Two hosts: 14 steps inside and one between, at the rate of a host's ports.
    far = 8.4e-6 + 14 * 3.4e-6 + 9.6e-6 + 15 / 16 * size / 200e9
    assert two == pytest.approx(far)
    assert ring_seconds(size, rank_group(1, 1, 8), A100, rates) == 0.0


def test_small_messages_over_many_hosts_take_the_protocol_of_low_latency():
    group = rank_group(512, 1, 8)
    simple = 8.4e-6 + 448 * 3.4e-6 + 63 * 9.6e-6
    found = ring_seconds(1e6, group, H100, RATES)
    assert found < 0.5 * simple
    assert ring_seconds(4e9, group, H100, RATES) > simple


def test_terms_add_up_and_none_is_negative():
    for layout in (LAYOUT, replace(LAYOUT, remat=True, zero=2, reduce_bytes=2)):
        found = terms(layout)
        step = FsdpStep(model=network(), layout=layout, cluster=H100)
        assert sum(found.values()) == pytest.approx(step.seconds(RATES))
        assert min(found.values()) >= 0


def test_what_is_first_and_last_is_exposed_and_no_more_where_computing_is_long():
    found, step = terms(), FsdpStep(model=network(), layout=LAYOUT, cluster=H100)
    group = rank_group(8, 1, 8)

    def one(size):
        return ring_seconds(size, group, H100, RATES)

    # The root moves alone; a block beside the embedding, which is soon done.
    root, block = step.root_parameters, step.block_parameters
    for name, size in (("all-gather", 2), ("reduce-scatter", 4)):
        alone = one(size * root)
        assert alone <= found[name] <= alone + one(size * block)


def test_collectives_are_exposed_where_computing_is_short():
    tiny = replace(LAYOUT, batch=8, microbatch=1)
    short = network(sequence=128)
    slow = replace(RATES, inside=0.1)
    found = terms(tiny, short, rates=slow)
    computed = found["forward"] + found["backward"]
    parameters = FsdpStep(model=short, layout=tiny, cluster=H100)
    blocks = short.layers * parameters.block_parameters
    sent = 7 / 8 * (8 * blocks + 6 * parameters.root_parameters) / 45e9
    exposed = sum(found[name] for name in COLLECTIVES)
    assert exposed == pytest.approx(sent - computed, rel=0.1)


def test_zero_2_gathers_once_and_pure_reduces_half():
    slow = replace(RATES, inside=0.05, interference=0.0)
    step = FsdpStep(model=network(), layout=LAYOUT, cluster=H100)
    blocks = 32 * 7 / 8 * 2 * step.block_parameters / (0.05 * 450e9)
    plain = terms(rates=slow)
    kept = terms(replace(LAYOUT, zero=2), rates=slow)
    assert sum(plain.values()) - sum(kept.values()) == pytest.approx(blocks, rel=0.1)
    pure = terms(replace(LAYOUT, reduce_bytes=2, state_bytes=2), rates=slow)
    saved = plain["reduce-scatter"] - pure["reduce-scatter"]
    assert saved == pytest.approx(blocks, rel=0.1)
    assert pure["update"] == pytest.approx(plain["update"] / 2)


def test_remat_adds_a_forward_pass_of_the_blocks():
    plain, again = terms(), terms(replace(LAYOUT, remat=True))
    assert plain["recompute"] == 0
    assert 0.9 * plain["forward"] < again["recompute"] < plain["forward"]
    assert again["backward"] == pytest.approx(plain["backward"])


def test_computing_loses_what_hidden_collectives_take():
    alone, beside = terms(rates=replace(RATES, interference=0.0)), terms()
    moved = 7 / 8 * (8 * 32 * 12 * 4096**2) / (450e9 * 0.77)
    assert alone["interference"] == 0
    assert beside["interference"] == pytest.approx(0.5 * moved, rel=0.05)


def test_passes_add_up_and_the_last_may_be_smaller():
    one, two = terms(), terms(replace(LAYOUT, batch=96, passes=2))
    assert two["forward"] == pytest.approx(2 * one["forward"])
    assert two["all-gather"] == pytest.approx(2 * one["all-gather"])
    assert two["update"] == one["update"]
    rest = replace(LAYOUT, batch=72, passes=2)
    assert rest.pass_samples == {6: 1, 3: 1}
    assert 1.4 < terms(rest)["forward"] / one["forward"] < 1.6
    # A table may round the passes down.
    assert replace(rest, passes=1).pass_samples == rest.pass_samples
    with pytest.raises(BadInput, match="accumulate 3"):
        replace(LAYOUT, batch=144)


def test_an_a100_of_40_gb_is_slower_by_its_memory_alone():
    big, small = FSDP_CARDS["a100_80"], FSDP_CARDS["a100_40"]
    assert small.chip == big.chip
    ours, theirs = small.cluster.device, big.cluster.device
    assert (ours.memory.value, theirs.memory.value) == (40e9, 80e9)
    assert ours.memory_bandwidth.value / theirs.memory_bandwidth.value == 1555 / 2039
    assert ours.peak("bfloat16").value == theirs.peak("bfloat16").value
    slower = sum(terms(cluster=small.cluster).values()) / sum(
        terms(cluster=big.cluster).values()
    )
    assert 1.0 < slower < 2039 / 1555


@pytest.mark.parametrize(
    ("card", "name"),
    [("h100", "dgx-h100"), ("a100_80", "dgx-a100"), ("a100_40", "dgx-a100-40")],
)
def test_cards_have_the_numbers_of_named_clusters(card, name):
    ours, named = FSDP_CARDS[card].cluster, load_cluster(name)
    assert ours.device.name == named.device.name
    for a, b in (
        (ours.device.memory_bandwidth, named.device.memory_bandwidth),
        (ours.device.memory, named.device.memory),
        (ours.device.peak("bfloat16"), named.device.peak("bfloat16")),
        (ours.levels[0].bandwidth, named.levels[0].bandwidth),
        (ours.levels[1].bandwidth, named.levels[1].bandwidth),
    ):
        assert a.value == pytest.approx(b.value, rel=1e-3)
