"""Layouts: the meshes of a number of devices, as plans that could be tried."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from jaxdist.core.plan import MeshShape, Plan

SEARCH_AXES: Final = ("pipe", "data", "fsdp", "spatial_h", "spatial_w", "tensor")
"""Axes over which devices are dealt out, outermost first."""


def enumerate_layouts(
    plan: Plan, devices: int, axes: Sequence[str] = SEARCH_AXES
) -> Iterator[Plan]:
    """Yield a plan for every way to deal devices out over axes.

    Args:
        plan: what stays as it is: the reduction, the shuffle, the schedule.
        devices: the product of the sizes.
        axes: that may have more than one device.

    >>> [p.title for p in enumerate_layouts(Plan(), 2, ("data", "tensor"))]
    ['tensor 2', 'data 2']
    """
    for sizes in _factorizations(devices, len(axes)) if axes else [()] * (devices == 1):
        mesh = MeshShape(**dict(zip(axes, sizes, strict=True)))
        yield replace(plan.on(mesh), mesh=mesh)


def single_axis_layouts(
    plan: Plan, devices: int, axes: Sequence[str] = SEARCH_AXES
) -> Iterator[Plan]:
    """Yield the layouts that everybody asks about: all devices along one axis."""
    for axis in axes:
        mesh = MeshShape(**{axis: devices})
        yield replace(plan.on(mesh), mesh=mesh)


def multi_host_layouts(
    plan: Plan, devices: int, host_devices: int, axes: Sequence[str] = SEARCH_AXES
) -> Iterator[Plan]:
    """Yield the layouts that people publish for many hosts.

    Tensor parallelism within a host and data parallelism between hosts (Shoeybi et al.
    2019, arXiv 1909.08053), with stages between hosts as well (Narayanan et al. 2021,
    arXiv 2104.04473), and shards within a host, copies between (Zhao et al. 2023, arXiv
    2304.11277, "hybrid sharding").

    Args:
        plan: what stays as it is.
        devices: of all hosts.
        host_devices: devices of one.
        axes: that may have more than one device.

    >>> [p.title for p in multi_host_layouts(Plan(), 128, 8)]
    ['data 16 x tensor 8', 'pipe 8 x data 2 x tensor 8', 'data 16 x fsdp 8']
    """
    hosts, left = divmod(devices, host_devices)
    if left or hosts == 1 or host_devices == 1:
        return
    stages = math.gcd(hosts, host_devices)
    for sizes in (
        {"data": hosts, "tensor": host_devices},
        {"pipe": stages, "data": hosts // stages, "tensor": host_devices},
        {"data": hosts, "fsdp": host_devices},
    ):
        if {axis for axis, size in sizes.items() if size > 1} <= {*axes}:
            mesh = MeshShape(**sizes)
            yield replace(plan.on(mesh), mesh=mesh)


@cache
def _factorizations(number: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Return every way to write a number as a product of so many factors."""
    if count == 1:
        return ((number,),)
    return tuple(
        (first, *rest)
        for first in range(1, number + 1)
        if number % first == 0
        for rest in _factorizations(number // first, count - 1)
    )
