"""Hosts of a mesh, and the groups of devices whose collectives are timed on them.

Of P hosts with D devices each, all groups of a kind at once:

    in a host      every number of devices that divides D, side by side
    between hosts  all devices of each, or one, of every number of hosts that divides P;
                   of all P hosts every number that divides D as well
"""

from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from jaxdist.core.plan import MeshShape


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """Groups of devices along one mesh axis."""

    size: int
    """Number of devices in a group."""
    stride: int = 1
    """Distance of neighbours in the order of the mesh."""

    def mesh_shape(self, count: int) -> MeshShape:
        """Return the mesh of `count` devices whose data axis has these groups.

        >>> mesh = DeviceGroup(size=4, stride=2).mesh_shape(16)
        >>> mesh.replica, mesh.data, mesh.tensor
        (2, 4, 2)
        """
        others = count // (self.size * self.stride)
        return MeshShape(replica=others, data=self.size, tensor=self.stride)


@dataclass(frozen=True, kw_only=True)
class HostTopology:
    """Number of hosts, and devices of each, side by side in the mesh."""

    num_hosts: int
    """Number of processes."""
    devices_per_host: int
    """Number of devices of one."""

    @property
    def num_devices(self) -> int:
        """All devices."""
        return self.num_hosts * self.devices_per_host

    def group_devices_per_host(self, group: DeviceGroup) -> int | None:
        """Return the devices of a group in each of several hosts; None within one."""
        # A group spans size x stride devices of the mesh.
        if group.size * group.stride <= self.devices_per_host:
            return None
        return self.devices_per_host // group.stride

    @property
    def intra_host_groups(self) -> tuple[DeviceGroup, ...]:
        """Groups within a host.

        >>> hosts = HostTopology(num_hosts=2, devices_per_host=4)
        >>> [group.size for group in hosts.intra_host_groups]
        [2, 4]
        """
        return tuple(
            DeviceGroup(size=size)
            for size in _divisors(self.devices_per_host)
            if size > 1
        )

    @property
    def inter_host_groups(self) -> tuple[DeviceGroup, ...]:
        """Groups across several hosts.

        >>> groups = HostTopology(num_hosts=4, devices_per_host=4).inter_host_groups
        >>> [(group.size, group.stride) for group in groups]
        [(2, 4), (4, 4), (8, 2), (8, 1), (16, 1)]
        """
        # A mesh has more kinds than these. Along an axis over part of the hosts lie
        # mostly whole hosts (stages, replicas) or one device of each; an axis that
        # shares a host with another mostly reaches over all hosts. For the rest the
        # oracle takes the most similar group.
        return tuple(
            DeviceGroup(size=inside * hosts, stride=self.devices_per_host // inside)
            for inside in _divisors(self.devices_per_host)
            for hosts in _divisors(self.num_hosts)
            if hosts > 1
            and (inside in (1, self.devices_per_host) or hosts == self.num_hosts)
        )


def host_topology(mesh: Mesh) -> HostTopology:
    """Return the hosts of a mesh; one, where all links are of one kind.

    Args:
        mesh: mesh of the devices that are measured.
    """
    processes = np.array([device.process_index for device in mesh.devices.flat])
    _, first, counts = np.unique(processes, return_index=True, return_counts=True)
    count, devices = len(counts), len(processes) // len(counts)
    in_order = np.repeat(processes[np.sort(first)], devices)
    # With one process, or one device of each, links are of one kind. Where processes
    # have different numbers of devices, or these are not side by side, nothing is
    # known.
    side_by_side = np.array_equal(processes, in_order)
    if count == 1 or devices == 1 or len(set(counts)) > 1 or not side_by_side:
        return HostTopology(num_hosts=1, devices_per_host=len(processes))
    return HostTopology(num_hosts=count, devices_per_host=devices)


def _divisors(whole: int) -> list[int]:
    """Return the divisors of a number, in order."""
    return [size for size in range(1, whole + 1) if whole % size == 0]
