"""Stage placement: the devices along the pipe axis that have each stage.

Without replicas stage k of a plan is on device k % p. With replicas a stage has
consecutive devices of its own, and microbatch m runs on the (m % R)-th of its R.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.core.plan import Plan

PermutePairs = tuple[tuple[int, int], ...]
"""(from, to): no device occurs twice on either side."""


@dataclass(frozen=True, kw_only=True)
class StagePlacement:
    """The devices of every stage."""

    stage_devices: tuple[tuple[int, ...], ...]
    """Devices of each stage."""

    @property
    def stages(self) -> int:
        """Stages in all."""
        return len(self.stage_devices)

    @property
    def devices(self) -> int:
        """Devices along the axis."""
        return 1 + max(max(devices) for devices in self.stage_devices)

    @property
    def replicas(self) -> tuple[int, ...]:
        """How many devices each stage has."""
        return tuple(map(len, self.stage_devices))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Devices that have the same stages."""
        return tuple(sorted(set(self.stage_devices)))

    def device_of(self, stage: int, micro: int = 0) -> int:
        """Return the device that runs a microbatch on a stage."""
        own = self.stage_devices[stage]
        return own[micro % len(own)]

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the stages that a device has."""
        pairs = enumerate(self.stage_devices)
        return tuple(stage for stage, devices in pairs if device in devices)

    def replicas_of(self, device: int) -> int:
        """Return how many devices share a device's stages, itself included."""
        return len(self.stage_devices[self.stages_of(device)[0]])

    def send_permutations(self) -> tuple[PermutePairs, ...]:
        """Return permutations in which every stage reaches the one after it.

        >>> StagePlacement(stage_devices=((0,), (1,), (2,))).send_permutations()
        (((0, 1), (1, 2)),)
        >>> StagePlacement(stage_devices=((0, 1), (2,), (3,))).send_permutations()
        (((0, 2), (2, 3)), ((1, 2),))
        """
        # Microbatch m goes from replica m % a to replica m % b, so all pairs have
        # occurred after a b microbatches.
        pairs = {
            (a[m % len(a)], b[m % len(b)])
            for a, b in itertools.pairwise(self.stage_devices)
            for m in range(len(a) * len(b))
        }
        # In a permutation no device sends or receives twice: each pair goes into the
        # first that it does not conflict with.
        found: list[list[tuple[int, int]]] = []
        for source, target in sorted(pairs):
            for hop in found:
                if not any(source == a or target == b for a, b in hop):
                    hop.append((source, target))
                    break
            else:
                found.append([(source, target)])
        return tuple(map(tuple, found))


def round_robin_placement(stages: int, devices: int) -> StagePlacement:
    """Return the placement of stages that have one device each.

    >>> round_robin_placement(4, 2).stage_devices
    ((0,), (1,), (0,), (1,))
    """
    return StagePlacement(stage_devices=tuple((k % devices,) for k in range(stages)))


def replicated_placement(replicas: Sequence[int]) -> StagePlacement:
    """Return the placement of stages with so many devices each.

    >>> replicated_placement((2, 1)).stage_devices
    ((0, 1), (2,))
    """
    # Replicas are neighbours, so that their sums stay inside a host where they can.
    ends = itertools.accumulate(replicas)
    return StagePlacement(
        stage_devices=tuple(
            tuple(range(end - count, end))
            for end, count in zip(ends, replicas, strict=True)
        )
    )


def stage_placement(plan: Plan) -> StagePlacement:
    """Return the placement of the stages of a plan."""
    if plan.pipe.replicas:
        return replicated_placement(plan.pipe.replicas)
    return round_robin_placement(plan.stages, plan.mesh.pipe)
