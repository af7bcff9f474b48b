"""The bytes of a device that trains a Transformer in mixed precision, by term.

Korthikanti et al. 2022 (arXiv 2205.05198): a layer saves, for s tokens, b samples,
h features, a heads and t devices along tensor,

    nothing recomputed        s b h (10 + 24/t + 5 a s / (h t))
    + sequence parallel       s b h (34/t + 5 a s / (h t))
    selective recompute       s b h (10 + 24/t), with sequence parallel 34/t
    full recompute            2 s b h

The head saves 4 s b (h + V) / t: its input, and logits in float32 for the loss. The
first of p stages has p microbatches in flight, or with v chunks
L (1 + (p - 1) / (p v)) layers instead of L; stage i of 1F1B has p - i. Bytes of a
number: 2; of a mask: 1.
"""

from typing import Final

from jaxdist.oracle.published.megatron.model import MegatronLayout, MegatronModel

BYTES_PER_PARAMETER: Final = {"parameters": 2, "gradients": 4, "optimizer": 12}
"""Bytes of a parameter: half-size weight, float32 gradient, float32 weight with mean
and square of Adam."""


def layer_activation_bytes(model: MegatronModel, layout: MegatronLayout) -> float:
    """Return the bytes that one layer saves of a microbatch.

    The feed-forward part and heads may have any sizes; with f = 4 h and a d = h it is
    the equation above.
    """
    tokens, t = layout.microbatch * model.sequence, layout.tensor
    # Full recomputation saves the input of a layer alone.
    if layout.recompute == "full":
        return 2.0 * tokens * model.hidden
    norms = 10 * model.hidden / (t if layout.sequence_parallel else 1)
    # 6 a d of queries, keys and values, 2 a d before the projection; 4 f around GELU
    split = (8 * model.attention_width + 4 * model.feedforward) / t
    core = 5 * model.heads * model.sequence / t
    return tokens * (norms + split + core * (layout.recompute == "none"))


def layers_in_flight(model: MegatronModel, layout: MegatronLayout) -> float:
    """Return how many layers' activations the first stage has at once, at most.

    With as many microbatches as stages, L; with fewer, fewer; chunks add to it.
    """
    p, v, m = layout.pipe, layout.chunks, layout.microbatches
    layers = model.layers / p
    # The first stage has the most microbatches in flight: as many as there are stages.
    if v == 1:
        return layers * min(m, p)
    return layers * min(m, p * (1 + (p - 1) / (p * v)))


def memory_terms(
    model: MegatronModel, layout: MegatronLayout, *, include_embedding: bool = True
) -> dict[str, float]:
    """Return the bytes of a device in the first stage, by term.

    Args:
        model: the network.
        layout: how it is split.
        include_embedding: the embedding counts; published figures are often of layers
            alone.
    """
    layers = model.layers / layout.pipe
    own = layers * model.layer_parameters(layout.tensor)
    # The first stage holds the embedding beside its layers.
    own += model.embedding_parameters(layout.tensor) if include_embedding else 0.0
    terms = {name: size * own for name, size in BYTES_PER_PARAMETER.items()}
    kept = layer_activation_bytes(model, layout) * layers_in_flight(model, layout)
    return terms | {"activations": kept}


def fullest_stage_terms(
    model: MegatronModel, layout: MegatronLayout
) -> dict[str, float]:
    """Return the bytes of a device in the stage that needs most, by term.

    Unlike `memory_terms` it counts the head, whose weights are the embedding's and a
    copy in stages of their own, and stages that are not alike.

    Args:
        model: the network.
        layout: how it is split; with chunks the first stage is taken.
    """
    t, tokens = layout.tensor, layout.microbatch * model.sequence
    counts = layout.layers_of_stages(model.layers)
    stages, last = [], layout.pipe - 1
    for stage, count in enumerate(counts):
        own = count * model.layer_parameters(t)
        # Every stage but the last begins some microbatches before their backward pass.
        kept = count * min(layout.microbatches, layout.pipe - stage)
        if layout.chunks > 1:
            kept = layers_in_flight(model, layout)
        logits = 0.0
        if stage == 0:
            own += model.embedding_parameters(t)
        if stage == last:
            own += model.vocabulary / t * model.hidden * bool(last)
            logits = 4.0 * tokens * (model.hidden + model.vocabulary) / t
        terms = {name: size * own for name, size in BYTES_PER_PARAMETER.items()}
        terms["activations"] = layer_activation_bytes(model, layout) * kept
        stages.append(terms | {"logits": logits})
    return max(stages, key=lambda one: sum(one.values()))
