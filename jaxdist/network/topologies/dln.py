"""DLN: a loop of switches with shortcuts at every power-of-two distance.

Switch i has cables to i ± 1, i ± 2, i ± 4, ... up to half of the loop. Partners of
halving-doubling, i XOR 2^j, are then one cable apart where each endpoint has a switch
of its own. The price is ports: 2 log2 N - 1 of a switch lead to others, N = 2^m
switches.

Source: Koibuchi et al. 2012, "A case for random shortcut topologies for HPC
interconnects", ISCA (distributed loop networks); the offsets are those of a circulant
graph of powers of two.
"""

import numpy as np

from jaxdist.network.routes import IntArray
from jaxdist.network.topologies.fabric import (
    CableSpec,
    Fabric,
    check_positive,
    stack_hops,
    uniform_cables,
)


def dln(endpoints: int, cable: CableSpec, *, per_switch: int = 1) -> Fabric:
    """Return a loop with shortcuts.

    Args:
        endpoints: number of them; the last switch may have fewer than the others.
        cable: kind of the cables.
        per_switch: endpoints of a switch.

    Raises:
        BadInput: no endpoint on a switch.
    """
    wide = check_positive("per_switch", per_switch, "a DLN")
    switches = -(-endpoints // wide)
    offsets = [1 << k for k in range(switches.bit_length()) if 1 << k < switches]
    capacity, latency = uniform_cables(endpoints + switches * len(offsets), cable)

    def walk(sources: IntArray, targets: IntArray) -> IntArray:
        first, last = 2 * sources, 2 * targets + 1
        inner = _switch_hops(sources // wide, targets // wide, switches, len(offsets))
        inner = np.where(inner >= 0, inner + 2 * endpoints, -1)
        return np.concatenate((stack_hops(first), inner, stack_hops(last)), axis=1)

    # Halfway round, both directions are one cable.
    between = sum(1 if 2 * offset == switches else 2 for offset in offsets)
    return Fabric(
        name=f"DLN of {switches:,} switches",
        endpoints=endpoints,
        capacity=capacity,
        latency=latency,
        route_fn=walk,
        ports=wide + between,
        switches=switches,
        injection_bandwidth=cable.bandwidth,
        per_switch=wide,
    )


def _switch_hops(
    sources: IntArray, targets: IntArray, switches: int, kinds: int
) -> IntArray:
    """List the cables between switches; cable (i, k) joins i and i + 2^k."""
    if not kinds:
        return np.zeros((len(sources), 0), np.int64)
    # A message goes by the distance in signed powers of two with the fewest of them,
    # largest first: of the two ways round the loop by the one with fewer, and upwards
    # where both have as many. In loops of a power of two that is a shortest route.
    ahead = (targets - sources) % switches
    up = _signed_digits(ahead, switches, kinds)
    down = -_signed_digits(-ahead % switches, switches, kinds)
    shorter = np.abs(up).sum(axis=1) <= np.abs(down).sum(axis=1)
    digits = np.where(shorter[:, None], up, down)
    at = sources.copy()
    columns: list[IntArray] = []
    for kind in (kinds - 1, *reversed(range(kinds))):
        place = len(columns)
        digit, offset = digits[:, place], 1 << kind
        owner = np.where(digit > 0, at, (at - offset) % switches)
        back = (digit < 0).astype(np.int64)
        if 2 * offset == switches:  # both ways are one cable
            owner, back = at % offset, at // offset
        columns.append(np.where(digit != 0, 2 * (owner * kinds + kind) + back, -1))
        at = (at + digit * offset) % switches
    return np.stack(columns, axis=1)


def _signed_digits(distance: IntArray, switches: int, kinds: int) -> IntArray:
    """Write distances in signed powers of two with the fewest that are not zero.

    Returns:
        `[F, 1 + K]`, largest power first; the largest offset may be used twice.
    """
    rest = distance.copy()
    columns: list[IntArray] = []
    for _ in range(kinds - 1):
        # The non-adjacent form: an odd rest takes the digit that makes it divisible
        # by 4.
        digit = np.where(rest % 2 == 1, 2 - rest % 4, 0)
        columns.append(digit)
        rest = (rest - digit) // 2
    # In a loop of a power of two, the largest offset twice is once round: nothing.
    if 1 << kinds == switches:
        rest %= 2
    columns += [np.minimum(rest, 1), rest // 2]
    return np.stack(columns[::-1], axis=1)
