"""Hosts: processes with several devices each, and the groups that are timed on them.

Of P hosts with D devices each, all groups of a kind at once:

    in a host      every number of devices that divides D, side by side
    between hosts  all devices of each, or one, of every number of hosts that divides P;
                   of all P hosts every number that divides D as well

A mesh has more kinds than these. Along an axis that reaches over part of the hosts lie
mostly whole hosts (stages, replicas) or one device of each; one that shares a host with
another axis mostly reaches over all of them. Elsewhere the oracle takes what lies most
alike.
"""

from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from jaxdist.core.plan import MeshShape


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """Groups of devices as a mesh axis makes them."""

    devices: int
    """Of a group."""
    stride: int = 1
    """From each to the next, in the order of the mesh: groups that lie in between."""

    def mesh(self, count: int) -> MeshShape:
        """Return the mesh of so many devices whose data axis makes these groups.

        >>> mesh = DeviceGroup(devices=4, stride=2).mesh(16)
        >>> mesh.replica, mesh.data, mesh.tensor
        (2, 4, 2)
        """
        others = count // (self.devices * self.stride)
        return MeshShape(replica=others, data=self.devices, tensor=self.stride)


@dataclass(frozen=True, kw_only=True)
class HostTopology:
    """How many hosts there are, and devices of each, side by side in the mesh."""

    count: int
    """Processes."""
    devices: int
    """Of one."""

    @property
    def whole(self) -> int:
        """All devices."""
        return self.count * self.devices

    def inside(self, among: DeviceGroup) -> int | None:
        """Return the devices of a group in each of several hosts; None within one."""
        if among.devices * among.stride <= self.devices:
            return None
        return self.devices // among.stride

    @property
    def within(self) -> tuple[DeviceGroup, ...]:
        """Groups in a host.

        >>> [group.devices for group in HostTopology(count=2, devices=4).within]
        [2, 4]
        """
        return tuple(
            DeviceGroup(devices=size) for size in _divisors(self.devices) if size > 1
        )

    @property
    def between(self) -> tuple[DeviceGroup, ...]:
        """Groups that reach over several hosts.

        >>> groups = HostTopology(count=4, devices=4).between
        >>> [(group.devices, group.stride) for group in groups]
        [(2, 4), (4, 4), (8, 2), (8, 1), (16, 1)]
        """
        return tuple(
            DeviceGroup(devices=inside * hosts, stride=self.devices // inside)
            for inside in _divisors(self.devices)
            for hosts in _divisors(self.count)
            if hosts > 1 and (inside in (1, self.devices) or hosts == self.count)
        )


def host_topology(mesh: Mesh) -> HostTopology:
    """Return the hosts of a mesh; one, where the links do not come in two kinds.

    That is where there is one process, or one device of each; where processes have
    unlike numbers of devices, or these do not stand side by side, nothing is known.

    Args:
        mesh: of the devices that are measured.
    """
    of = np.array([device.process_index for device in mesh.devices.flat])
    _, first, each = np.unique(of, return_index=True, return_counts=True)
    count, devices = len(each), len(of) // len(each)
    side_by_side = np.array_equal(of, np.repeat(of[np.sort(first)], devices))
    if count == 1 or devices == 1 or len(set(each)) > 1 or not side_by_side:
        return HostTopology(count=1, devices=len(of))
    return HostTopology(count=count, devices=devices)


def _divisors(whole: int) -> list[int]:
    """Return the numbers that divide it."""
    return [size for size in range(1, whole + 1) if whole % size == 0]
