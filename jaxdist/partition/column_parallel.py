"""Filter parallelism: each device has a slice of a layer's filters.

Rule: the filters of every layer divide over the tensor axis, groups undivided or each
divided alike; the units of an LSTM do, and all its gates with them; tables are whole.
Traffic a step of a layer (output y on one device): an all-gather of y, and backward a
reduce-scatter of its gradient. (ParaDL has an all-reduce there, twice as much.)

Source: Kahira et al. 2021, arXiv:2104.09075, section 3.
"""

from collections.abc import Sequence

from flax import nnx

from jaxdist.layers import Embed
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition.weights import ShardableLayer, uneven_split_error


def column_parallel_roles(
    shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
) -> Roles:
    """Say what each layer does with the tensor axis.

    Raises:
        BadInput: a layer whose filters do not divide.
    """
    layers = [w for w in shardable if not isinstance(w.layer, Embed)]
    for w in layers:
        if not filters_divide(w, devices):
            works = max(n for n in range(1, devices) if all_filters_divide(layers, n))
            raise uneven_split_error(w, "filters", w.out_features, devices, works)
    return {w.path: "filter" for w in layers}


def filters_divide(layer: ShardableLayer, devices: int) -> bool:
    """Tell whether each device gets as many filters, of whole groups or of one."""
    whole = layer.groups % devices == 0 or devices % layer.groups == 0
    return layer.out_features % devices == 0 and whole


def all_filters_divide(layers: Sequence[ShardableLayer], devices: int) -> bool:
    """Tell whether `filters_divide` holds for every layer."""
    return all(filters_divide(w, devices) for w in layers)
