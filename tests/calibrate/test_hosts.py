"""Hosts: which groups of devices are timed, and where processes are taken for hosts."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxdist.calibrate.hosts import DeviceGroup, HostTopology, host_topology
from jaxdist.calibrate.levels import timed_groups


def mesh_of(processes):
    devices = [SimpleNamespace(process_index=one) for one in processes]
    return SimpleNamespace(devices=np.array(devices, object).reshape(1, -1, 1))


@pytest.mark.parametrize(
    ("processes", "hosts"),
    [
        ([0, 0, 0, 0], (1, 4)),
        ([0, 1, 2, 3], (1, 4)),
        ([0, 0, 1, 1], (2, 2)),
        ([1, 1, 1, 0, 0, 0], (2, 3)),
        # Not side by side, or not as many each: one level, as if nothing were known.
        ([0, 1, 0, 1], (1, 4)),
        ([0, 0, 0, 1], (1, 4)),
        ([0, 0, 1, 1, 0, 0, 1, 1], (1, 8)),
        ([0], (1, 1)),
    ],
)
def test_processes_with_several_devices_each_are_hosts(processes, hosts):
    found = host_topology(mesh_of(processes))
    assert (found.num_hosts, found.devices_per_host) == hosts
    assert found.num_devices == len(processes)


@pytest.mark.parametrize(("hosts", "each"), [(1, 8), (2, 4), (4, 1), (1, 1)])
def test_a_quick_calibration_times_one_group_a_level(hosts, each):
    topology = HostTopology(num_hosts=hosts, devices_per_host=each)
    every, whole = timed_groups(topology), timed_groups(topology, whole=True)
    assert set(whole) <= set(every)
    assert len(whole) == (each > 1) + (hosts > 1)


def test_one_host_is_timed_in_groups_of_every_size():
    one = HostTopology(num_hosts=1, devices_per_host=8)
    assert one.intra_host_groups == tuple(DeviceGroup(size=size) for size in (2, 4, 8))
    assert one.inter_host_groups == ()
    assert one.group_devices_per_host(DeviceGroup(size=8)) is None


@pytest.mark.parametrize(
    ("count", "devices", "groups"), [(2, 2, 3), (4, 2, 5), (4, 4, 7), (8, 8, 11)]
)
def test_groups_are_few_and_each_is_another(count, devices, groups):
    hosts = HostTopology(num_hosts=count, devices_per_host=devices)
    found = hosts.intra_host_groups + hosts.inter_host_groups
    assert len(set(found)) == len(found) == groups
    for among in hosts.inter_host_groups:
        inside = hosts.group_devices_per_host(among)
        assert inside * among.stride == devices
        assert among.mesh_shape(hosts.num_devices).devices == hosts.num_devices


def test_groups_of_one_size_that_lie_in_two_ways_are_told_apart():
    hosts = HostTopology(num_hosts=4, devices_per_host=2)
    of_four = [among for among in hosts.inter_host_groups if among.size == 4]
    assert [hosts.group_devices_per_host(among) for among in of_four] == [1, 2]
