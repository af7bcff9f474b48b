"""Timings of kernels and layers out of networks compiled for a target.

The compiler of a TPU estimates the cycles of each instruction, and says which layer it
is of and in which pass. A layer's own product is a kernel of its shape; norms, maxima
and what else moves bytes are layers by kind and size. What a compiler fuses into
neighbours is in these as it is in the networks.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jaxdist.core.cluster.device import Device
from jaxdist.core.cluster.kernel_timings import (
    KernelTiming,
    KernelTimings,
    WorkTiming,
)
from jaxdist.core.cluster.layer_timings import (
    LOSS,
    UPDATE,
    LayerTiming,
    LayerTimings,
)
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.profile import LayerProfile, Profile

_BACKWARD_KERNELS: Final = 2
"""Kernels of a backward pass: the gradients of the input and of the weights."""


@dataclass(frozen=True, kw_only=True)
class CompiledNetwork:
    """A network whose step was compiled, its samples split over devices alone."""

    name: str
    """What it is called, with its sizes."""
    profile: Profile
    """On the whole batch."""
    parts: int
    """Devices that share out the samples."""
    state_bytes: int
    """Bytes of parameters and optimizer on a device."""
    layer_seconds: Mapping[str, tuple[float, float]]
    """Seconds of both passes by the scope of a layer or block, "" the loss."""
    update_s: float
    """Seconds of the rest of the step: the update, casts, copies."""

    @property
    def step_s(self) -> float:
        """Seconds that a device computes."""
        return self.update_s + sum(map(sum, self.layer_seconds.values()))

    @property
    def output_bytes(self) -> float:
        """Bytes of the network's outputs on a device."""
        return self.profile.blocks[-1].output_bytes / self.parts


def layer_scope(layer: str, scopes: Iterable[str]) -> str | None:
    """Return the scope in which a compiled program has a layer; None: in none.

    Blocks and layers have scopes of their own, what lies between them has not.

    >>> layer_scope("block0.mlp", {"block0", "block0.mlp.up"})
    'block0'
    """
    known, words = frozenset(scopes), layer.split(".")
    ends = range(len(words), 0, -1)
    return next((s for s in (".".join(words[:n]) for n in ends) if s in known), None)


def fit_target_device(
    device: Device,
    networks: Sequence[CompiledNetwork],
    *,
    bandwidth: float,
    launch: float,
    number_bytes: int,
    tile: int,
    origin: str,
) -> Device:
    """Return a device with the timings of compiled networks.

    Args:
        device: as its data sheet has it.
        networks: compiled for it, in one dtype.
        bandwidth: bytes a second that the compiler has memory pass.
        launch: seconds of its smallest operation.
        number_bytes: bytes of a number of an activation.
        tile: side of the matrix units.
        origin: of the timings, as of a `SourcedNumber`.
    """
    peak = device.peak("bfloat16").value
    moved = SourcedNumber(bandwidth, origin)
    return replace(
        device,
        memory_bandwidth=moved,
        launch=SourcedNumber(launch, origin),
        kernels=KernelTimings(
            origin=origin,
            peak=peak,
            timed=_mean_timings(_iter_kernels(networks), lambda one: one.shape),
            memory_rate=bandwidth / number_bytes,
            tile=tile,
            launch=launch,
        ),
        layers=LayerTimings(
            origin=origin,
            peak=peak,
            bandwidth=bandwidth,
            launch=launch,
            timed=_mean_timings(
                _iter_layers(networks, bandwidth, peak),
                lambda one: (one.kind, one.size, one.flops_forward, one.flops_backward),
            ),
        ),
    )


def _iter_kernels(networks: Iterable[CompiledNetwork]) -> Iterator[KernelTiming]:
    for network in networks:
        for layer in network.profile.layers:
            kernel = layer.kernel
            forward, backward = network.layer_seconds.get(layer.name, (0.0, 0.0))
            # What is fused into a neighbour as a whole has no time of its own.
            if kernel is None or not forward or not backward:
                continue
            # Layers that read the network's input lack one of the two gradients.
            count = layer.flops_backward / layer.flops_forward / _BACKWARD_KERNELS
            yield KernelTiming(
                # The profile is of the whole batch, and cycles are those of one device.
                shape=replace(kernel, uses=kernel.uses / network.parts),
                forward_s=forward,
                backward_s=backward / min(1.0, count),
            )


def _mean_timings(
    timings: Iterable[WorkTiming], shape: Callable[[WorkTiming], Hashable]
) -> tuple[WorkTiming, ...]:
    """Return one timing a shape: what one of it took on average."""
    found: dict[Hashable, list[WorkTiming]] = defaultdict(list)
    for one in timings:
        found[shape(one)].append(one)
    return tuple(
        replace(
            each[0],
            forward_s=float(np.mean([one.forward_s for one in each])),
            backward_s=float(np.mean([one.backward_s for one in each])),
        )
        for each in found.values()
    )


def _iter_layers(
    networks: Iterable[CompiledNetwork], bandwidth: float, peak: float
) -> Iterator[LayerTiming]:
    for network in networks:
        # Layers with a kernel are timed by its shape; here are those that move bytes
        # alone.
        scoped: dict[str | None, list[LayerProfile]] = defaultdict(list)
        for layer in network.profile.layers:
            if layer.kernel is None and layer.output_bytes + layer.inner_bytes:
                scoped[layer_scope(layer.name, network.layer_seconds)].append(layer)
        for scope, layers in scoped.items():
            parts = network.parts
            sizes = [(x.output_bytes + x.inner_bytes) / parts for x in layers]
            flops = [
                (x.flops_forward / parts, x.flops_backward / parts) for x in layers
            ]
            # [layer, pass]: seconds at the speed of the memory and of the matrix units.
            least = np.array(
                [
                    (size / bandwidth + f / peak, size / bandwidth + b / peak)
                    for size, (f, b) in zip(sizes, flops, strict=True)
                ]
            )
            # What has one scope shares its seconds by what memory and peak allow.
            took = network.layer_seconds.get(scope or "", (0.0, 0.0))
            shares = least / least.sum(axis=0) * (took if scope else (0.0, 0.0))
            for layer, size, work, own in zip(
                layers, sizes, flops, shares, strict=True
            ):
                yield LayerTiming(
                    kind=layer.kind,
                    size=size,
                    flops_forward=work[0],
                    flops_backward=work[1],
                    forward_s=float(own[0]),
                    backward_s=float(own[1]),
                )
        forward, backward = network.layer_seconds.get("", (0.0, 0.0))
        # The loss is by the bytes of the network's outputs, the update by those of the
        # state.
        yield LayerTiming(
            kind=LOSS,
            size=network.output_bytes,
            forward_s=forward,
            backward_s=backward,
        )
        yield LayerTiming(
            kind=UPDATE,
            size=network.state_bytes,
            forward_s=network.update_s,
            backward_s=0.0,
        )
