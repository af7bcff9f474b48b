"""A target: a chip and a number of them, `tpu-v5p:4x4x4` or `h100:2x8`.

The compilers of TPUs and GPUs run on any machine. What they make of a step for a target
is the program that would run there; only running it needs the chips.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.meshes.targets.chips import CHIPS, Chip, GpuChip, TpuChip

_GRIDS: Final = {
    2: ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)),
    3: ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)),
}
"""Parts of a pod that are no multiples of 4 in each dim."""
_CUBE: Final = 4
_MAX_GPU_HOSTS: Final = 1024
_GPUS_PER_HOST: Final = 8
_CHIPS_PER_HOST: Final = 4


@dataclass(frozen=True, kw_only=True)
class Target:
    """Chips of one kind, and how they are arranged."""

    chip: Chip
    """What each device is."""
    shape: tuple[int, ...]
    """Sides of the torus; of GPUs the hosts, and the devices of each."""

    def __str__(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def platform(self) -> str:
        """What jax calls its devices: `tpu` or `gpu`."""
        return "tpu" if isinstance(self.chip, TpuChip) else "gpu"

    @property
    def devices(self) -> int:
        """All devices."""
        return math.prod(self.shape)

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster that has such devices and links."""
        return load_cluster(self.chip.cluster)

    @property
    def device(self) -> Device:
        """Peak rates and memory of a device."""
        return self.cluster.device


def parse_target(text: str) -> Target:
    """Read a target as people write it.

    Args:
        text: a chip, a colon and a shape.

    Raises:
        BadInput: no such chip, or a shape that its machines do not have.

    >>> target = parse_target("tpu-v5p:2x2x4")
    >>> target.devices, target.platform
    (16, 'tpu')
    >>> parse_target("h100:2x8").shape
    (2, 8)
    """
    name, _, given = text.partition(":")
    chips = {chip.name: chip for chip in CHIPS}
    if name not in chips:
        near = did_you_mean(name, chips)
        raise BadInput(
            f"no target {name}",
            rule=f"a target is a chip and a shape; chips are {', '.join(chips)}",
            values=f"--target {text}",
            remedy=f"did you mean {near}?" if near else "--target tpu-v5p:2x2x2",
        )
    chip = chips[name]
    sides = given.lower().split("x")
    shape = tuple(int(side) for side in sides if re.fullmatch(r"[1-9]\d{0,4}", side))
    # A side that is no number is missing from the shape.
    if len(shape) != len(sides) or not _exists(chip, shape):
        raise BadInput(
            f"there is no {name} of shape {given or 'nothing'}",
            rule=_shape_rule(chip),
            values=f"--target {text}",
            remedy=[f"--target {name}:{each}" for each in _examples(chip)],
        )
    return Target(chip=chip, shape=shape)


def target_for(chip_name: str, devices: int) -> Target | None:
    """Return the smallest target of a chip with so many devices; None where none has.

    >>> str(target_for("tpu-v5p", 16)), str(target_for("h100", 12))
    ('tpu-v5p:2x2x4', 'h100:2x6')
    """
    chip = next(chip for chip in CHIPS if chip.name == chip_name)
    if isinstance(chip, GpuChip):
        # As few hosts as can have the same number each.
        shapes: list[tuple[int, ...]] = [
            (devices // each, each) for each in range(_GPUS_PER_HOST, 0, -1)
        ]
    else:
        shapes = list(_GRIDS[chip.dims]) + list(_cubes(chip))
    fit = (s for s in shapes if math.prod(s) == devices and _exists(chip, s))
    found = next(fit, None)
    return Target(chip=chip, shape=found) if found else None


def host_target(name: str) -> Target:
    """Return a host of a chip's TPUs, the smallest machine of every generation.

    >>> str(host_target("tpu-v5p")), str(host_target("tpu-v5e"))
    ('tpu-v5p:2x2x1', 'tpu-v5e:2x2')

    Raises:
        BadInput: no TPU has this name.
    """
    chips = [chip.name for chip in CHIPS if isinstance(chip, TpuChip)]
    found = target_for(name, _CHIPS_PER_HOST) if name in chips else None
    if found is None:
        raise BadInput(
            f"no compiler estimates cycles of {name}",
            rule="compilers of TPUs estimate cycles, those of GPUs no time; chips are "
            f"{', '.join(chips)}, without a shape",
            values=f"calibrate target {name}",
            remedy=f"jaxdist calibrate target {chips[0]}",
        )
    return found


def check_target_size(target: Target, plan: Plan) -> None:
    """Refuse a plan for another number of devices than a target has.

    Raises:
        BadInput: with both ways out.
    """
    wanted = plan.mesh.devices
    if wanted == target.devices:
        return
    other = target_for(target.chip.name, wanted)
    raise BadInput(
        f"the plan is not for {target.devices:,} devices",
        rule="the axes of plan.mesh multiply to the devices of the target",
        values=f"{plan.title} = {wanted:,} devices, {target} has {target.devices:,}",
        remedy=[
            f"plan.mesh.data={target.devices} with the other axes at 1",
            *([f"--target {other}"] if other else []),
        ],
    )


def _exists(chip: Chip, shape: tuple[int, ...]) -> bool:
    if isinstance(chip, GpuChip):
        hosts, devices = shape if len(shape) == 2 else (0, 0)
        return 1 <= hosts <= _MAX_GPU_HOSTS and 1 <= devices <= _GPUS_PER_HOST
    if len(shape) != chip.dims:
        return False
    # Pods of three dims are built of racks of 4 x 4 x 4 chips, joined by optical
    # switches; smaller parts lie within a rack.
    cubes = chip.dims == 3 and all(side % _CUBE == 0 for side in shape)
    if cubes and math.prod(shape) <= chip.max_chips:
        # A pod is the same torus however its sides are ordered: one order names it.
        return list(shape) == sorted(shape)
    return shape in _GRIDS[chip.dims]


def _cubes(chip: TpuChip) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a chip's pods that are made of cubes of 4 x 4 x 4."""
    if chip.dims == 3:
        most = chip.max_chips
        yield from (
            (a, b, c)
            for c in range(_CUBE, most // _CUBE**2 + 1, _CUBE)
            for b in range(_CUBE, min(c, most // _CUBE // c) + 1, _CUBE)
            for a in range(_CUBE, min(b, most // b // c) + 1, _CUBE)
        )


def _shape_rule(chip: Chip) -> str:
    if isinstance(chip, GpuChip):
        return (
            f"a shape of GPUs is hosts x devices: up to {_MAX_GPU_HOSTS:,} hosts of up "
            f"to {_GPUS_PER_HOST}"
        )
    grids = ", ".join("x".join(map(str, grid)) for grid in _GRIDS[chip.dims])
    cubes = (
        f", and multiples of 4 in ascending order, up to {chip.max_chips:,} chips"
        if chip.dims == 3
        else ""
    )
    return f"shapes of a {chip.name} are {grids}{cubes}"


def _examples(chip: Chip) -> tuple[str, ...]:
    if isinstance(chip, GpuChip):
        return "1x8", "2x8"
    return ("2x2", "4x4", "16x16") if chip.dims == 2 else ("2x2x1", "2x2x2", "4x4x4")
