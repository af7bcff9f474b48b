"""The bytes of a device by term.

    activations  d b sum y       each once: x of a layer is y of the one before
    gradients    d (max (x + y)) of activations, while the backward pass is at a layer;
                 d w of weights
    optimizer    4 bytes a weight: momentum in float32
    buffers      d w where gradients are summed: packed for one all-reduce

ParaDL (table 3) counts values and gradients of both x and y, twice as many bytes, and
no optimizer.
"""

from jaxdist.oracle.published.paradl.case import ParadlCase
from jaxdist.oracle.published.paradl.system import ParadlSystem

_MOMENTUM_BYTES = 4


def memory_by_term(case: ParadlCase, system: ParadlSystem) -> dict[str, float]:
    """Return the bytes of one device by term."""
    # A device trains a stage of the layers, or a part of the features of some.
    split = case.layer_split.feature_devices
    weights = float(case.weight_count)
    if case.split == "layer":
        weights = case.weight_count / case.group
    elif split > 1:
        mine = sum(layer.weights for layer in case.split_layers)
        weights = case.weight_count - mine * (1 - 1 / split)
    batch = case.group_batch / case.layer_split.spatial_devices
    layers = case.layers
    if case.split == "layer":
        # GPipe: a stage saves all segments until their backward pass; balanced stages.
        kept = sum(layer.outputs for layer in layers) / case.group
    else:
        kept = float(sum(layer.outputs for layer in layers))
    # The backward pass has the gradients of one layer at a time.
    largest = max(layer.inputs + layer.outputs for layer in layers)
    # ChainerMN packs all gradients into one buffer for the all-reduce.
    summed = case.groups > 1 or case.split in ("", "spatial")
    return {
        "parameters": system.element_bytes * weights,
        "gradients": system.element_bytes * weights,
        "optimizer": _MOMENTUM_BYTES * weights,
        "activations": system.element_bytes * batch * kept,
        "slopes": system.element_bytes * batch * largest / case.segments,
        "buffers": system.element_bytes * weights * (summed and case.devices > 1),
    }
