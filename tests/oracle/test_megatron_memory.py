"""Memory of a Transformer: the equations of Korthikanti et al. 2022."""

import pytest

from jaxdist.oracle.published.megatron.memory import (
    fullest_stage_terms,
    layer_activation_bytes,
    layers_in_flight,
    memory_terms,
)
from jaxdist.oracle.published.megatron.model import MegatronLayout, MegatronModel

MODEL = MegatronModel(
    hidden=6144,
    heads=64,
    layers=48,
    sequence=2048,
    vocabulary=51200,
    feedforward=4 * 6144,
    head_size=96,
)
S, B, H, A, T = 2048, 4, 6144, 64, 8


def layout(**changes):
    usual = dict(tensor=T, data=1, pipe=1, batch=8 * B, microbatch=B)
    return MegatronLayout(**usual | changes)


@pytest.mark.parametrize(
    ("recompute", "parallel", "terms"),
    [
        ("none", False, 10 + 24 / T + 5 * A * S / (H * T)),
        ("none", True, 34 / T + 5 * A * S / (H * T)),
        ("selective", False, 10 + 24 / T),
        ("selective", True, 34 / T),
        ("full", False, 2),
    ],
)
def test_activations_of_a_layer(recompute, parallel, terms):
    how = layout(recompute=recompute, sequence_parallel=parallel)
    assert layer_activation_bytes(MODEL, how) == pytest.approx(
        S * B * H * terms, rel=1e-12
    )


def test_the_first_stage_has_as_many_microbatches_as_stages_in_flight():
    assert layers_in_flight(MODEL, layout()) == 48
    assert layers_in_flight(MODEL, layout(pipe=8)) == 48
    dealt = layout(pipe=8, chunks=3, batch=64 * B)
    assert layers_in_flight(MODEL, dealt) == pytest.approx(48 * (1 + 7 / 24))
    assert layers_in_flight(MODEL, layout(pipe=8, chunks=3)) == 48  # all eight of them
    assert layers_in_flight(MODEL, layout(pipe=16)) == 8 * 3  # no more than there are


def test_a_parameter_is_eighteen_bytes():
    found = memory_terms(MODEL, layout(), include_embedding=False)
    states = sum(found[name] for name in ("parameters", "gradients", "optimizer"))
    assert states == 18 * 48 * MODEL.layer_parameters(T)
    ends = memory_terms(MODEL, layout())
    more = 18 * MODEL.embedding_parameters(T)
    assert sum(ends.values()) - sum(found.values()) == pytest.approx(more)


def test_one_stage_has_the_head_as_well():
    found = fullest_stage_terms(MODEL, layout())
    assert found.pop("logits") == 4 * S * B * (H + 51200) / T
    assert found == pytest.approx(memory_terms(MODEL, layout()))


def test_the_fullest_stage_is_the_first_unless_others_have_more_layers():
    def layers(found):
        return found["activations"] / layer_activation_bytes(MODEL, layout())

    assert layers(fullest_stage_terms(MODEL, layout(pipe=4))) == 12 * 4
    uneven = fullest_stage_terms(MODEL, layout(pipe=4, stage_layers=(6, 20, 11, 11)))
    assert layers(uneven) == 20 * 3
    assert uneven["logits"] == 0
    # The last stage has one microbatch, its layers, and a copy of the embedding.
    last = fullest_stage_terms(MODEL, layout(pipe=2, stage_layers=(1, 47)))
    assert last["logits"] > 0
    own = 47 * MODEL.layer_parameters(T) + 51200 * H / T
    assert last["optimizer"] == pytest.approx(12 * own)
