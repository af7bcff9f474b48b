"""Hosts of several devices on a fabric: NVLink or PCIe inside, network cards outside.

Each device has a PCIe cable to the switch of its host. `nvlink` joins each two devices
of a host besides; with `pcie` they reach each other over the PCIe switch. To another
host a message takes PCIe, a network card, the fabric, and PCIe again.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.network.routes import IntArray
from jaxdist.network.topologies.fabric import (
    CableSpec,
    Fabric,
    stack_hops,
    uniform_cables,
)

INTERCONNECTS: Final = ("nvlink", "pcie")
_NVLINK: Final = CableSpec(bandwidth=50e9, latency=0.0)
_PCIE: Final = CableSpec(bandwidth=16e9, latency=1e-7)


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """Devices, cards and cables of a host."""

    per_host: int = 1
    """Devices g; one is the endpoint of the fabric itself."""
    nics: int = 1
    """Network cards n, endpoints of the fabric."""
    inside: str = "nvlink"
    """`nvlink`: a cable for each two devices; `pcie`: none of them."""
    nvlink: CableSpec = _NVLINK
    """Between two devices."""
    pcie: CableSpec = _PCIE
    """Between a device and the switch of its host."""


def endpoint_count(devices: int, host: HostSpec) -> int:
    """Return the number of endpoints of a fabric for so many devices.

    Raises:
        BadInput: numbers that make no host.
    """
    g, n = host.per_host, host.nics
    if g < 1 or n < 1 or devices % g or g % n:
        near = [d for d in range(1, devices + 1) if devices % d == 0]
        good = min(near, key=lambda d: abs(d - g))
        raise BadInput(
            f"{devices:,} devices cannot be in hosts of {g} with {n} cards",
            rule="devices of a host divide all devices, and cards divide those",
            values=f"devices={devices:,}, per_host={g}, nics={n}",
            remedy=f"per_host={good} nics=1",
        )
    if host.inside not in INTERCONNECTS:
        meant = did_you_mean(host.inside, INTERCONNECTS)
        raise BadInput(
            f"hosts have no {host.inside} inside",
            rule=f"inside is one of {', '.join(INTERCONNECTS)}",
            values=f"inside={host.inside}",
            remedy=f"did you mean {meant}?" if meant else "inside=nvlink",
        )
    return devices // g * n


def attach_hosts(fabric: Fabric, devices: int, host: HostSpec) -> Fabric:
    """Return a fabric whose endpoints are devices of hosts.

    Args:
        fabric: its endpoints are the cards, host by host.
        devices: all of them.
        host: what is inside of one.
    """
    g, n = host.per_host, host.nics
    # A host of one device is an endpoint of the fabric itself, without PCIe.
    if g == 1:
        return fabric
    # A place for each ordered pair of a host, of which fewer than half are used: places
    # follow by arithmetic, without a table.
    joined = devices * g if host.inside == "nvlink" else 0
    outer = fabric.capacity.size
    inside = (uniform_cables(devices, host.pcie), uniform_cables(joined, host.nvlink))
    kinds = zip((fabric.capacity, fabric.latency), *inside)
    capacity, latency = (np.concatenate(columns) for columns in kinds)

    def walk(sources: IntArray, targets: IntArray) -> IntArray:
        home, goal = sources // g, targets // g
        # Card c of a host carries the messages of the devices d with d n // g = c.
        first = home * n + sources % g * n // g
        last = goal * n + targets % g * n // g
        # Inside a host the fabric is not used, nor PCIe where there is NVLink.
        near = (home == goal)[:, None]
        way = np.where(near, -1, fabric.route_fn(first, last))
        up, down = 2 * (outer + sources), 2 * (outer + targets) + 1
        if not joined:
            return np.concatenate((stack_hops(up), way, stack_hops(down)), axis=1)
        low, high = np.minimum(sources, targets), np.maximum(sources, targets)
        # Place of the cable of two devices of a host: a row of g places for the lower
        # one. The last bit is the direction.
        pair = 2 * (outer + devices + low * g + high % g) + (sources > targets)
        ends = np.where(near, -1, stack_hops(up, down))
        inner = np.where(near, stack_hops(pair), -1)
        return np.concatenate((ends[:, :1], way, ends[:, 1:], inner), axis=1)

    return Fabric(
        name=f"{fabric.name}, hosts of {g} with {host.inside}",
        endpoints=devices,
        capacity=capacity,
        latency=latency,
        route_fn=walk,
        ports=fabric.ports,
        switches=fabric.switches,
        injection_bandwidth=host.pcie.bandwidth
        + (g - 1) * host.nvlink.bandwidth * bool(joined),
        host_injection_bandwidth=n * fabric.injection_bandwidth,
        per_switch=g,
    )
