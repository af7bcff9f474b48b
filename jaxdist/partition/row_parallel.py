"""Channel parallelism: each device has a slice of the channels that a layer reads.

Rule: the channels of every layer behind the first divide over the tensor axis, within
each group where there are groups; the first layer, tables and LSTMs are whole.
Traffic a step of a layer (output y): an all-reduce of y, and one of its gradient.

Source: Kahira et al. 2021, arXiv:2104.09075, section 3.
"""

from collections.abc import Sequence

from flax import nnx

from jaxdist.layers import LSTM, Embed
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition.weights import ShardableLayer, uneven_split_error


def row_parallel_roles(
    shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
) -> Roles:
    """Say what each layer does with the tensor axis.

    Raises:
        BadInput: a layer whose channels do not divide.
    """
    whole = Embed | LSTM
    layers = [w for w in shardable if not (w.is_first or isinstance(w.layer, whole))]
    for w in layers:
        if _channels_per_group(w) % devices:
            works = max(n for n in range(1, devices) if _all_channels_divide(layers, n))
            raise uneven_split_error(w, "channels", w.in_features, devices, works)
    return {w.path: "channel" for w in layers}


def _channels_per_group(weights: ShardableLayer) -> int:
    return weights.in_features // weights.groups


def _all_channels_divide(layers: Sequence[ShardableLayer], devices: int) -> bool:
    return all(_channels_per_group(w) % devices == 0 for w in layers)
