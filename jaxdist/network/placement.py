"""Placement: which device each rank has."""

from typing import Final

import numpy as np

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.network.routes import IntArray
from jaxdist.network.topology import Topology

PLACEMENT_NAMES: Final = ("in_order", "dealt", "reversed_bits", "random")


def parse_placement(text: str, ranks: int, topology: Topology) -> IntArray:
    """Return the device of each rank.

    Args:
        text: `in_order`: rank r on device r; `dealt`: over switches (or hosts) in turn;
            `reversed_bits`: neighbours as far from each other as they can be;
            `random:SEED`; or devices with commas between.
        ranks: P.
        topology: has P devices at least.

    Raises:
        BadInput: no such placement.

    >>> from jaxdist.network.topologies.registry import make_topology
    >>> topology = make_topology("fat_tree", 6, {"per_leaf": 3})
    >>> parse_placement("dealt", 6, topology).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    name, _, seed = text.replace("-", "_").partition(":")
    match name:
        case "in_order":
            return np.arange(ranks)
        case "dealt":
            # Rank 0 to the first group of devices, 1 to the second, ...
            width = max(topology.per_switch, topology.per_host)
            devices = np.arange(ranks)
            return devices[np.lexsort((devices // width, devices % width))]
        case "reversed_bits":
            # Of the next power of two, without the devices that are not there.
            bits = max(ranks - 1, 1).bit_length()
            every, turned = np.arange(1 << bits), np.zeros(1 << bits, np.int64)
            for bit in range(bits):
                turned += ((every >> bit) & 1) << (bits - 1 - bit)
            return turned[turned < ranks]
        case "random" if seed.isdigit() or not seed:
            return np.random.default_rng(int(seed or 0)).permutation(ranks)
    # Otherwise a list of devices by hand.
    words = text.split(",")
    if len(words) > 1 and all(word.strip().isdigit() for word in words):
        return np.array([int(word) for word in words])
    near = did_you_mean(name, PLACEMENT_NAMES)
    raise BadInput(
        f"no placement named {text}",
        rule=f"one of {', '.join(PLACEMENT_NAMES)}, random:SEED, or devices with "
        "commas between",
        values=f"--placement {text}",
        remedy=f"did you mean {near}?" if near else "--placement dealt",
    )
