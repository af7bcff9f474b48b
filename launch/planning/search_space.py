"""A question: what may be chosen for an experiment, and what was said and stays."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, get_args

from jaxdist.core.axes import AXES as EVERY
from jaxdist.core.errors import BadInput, did_you_mean, unknown_name_error
from jaxdist.core.plan import AfterSpatial, Plan, TensorSplit
from jaxdist.core.plan.reduction import AlgorithmName

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.launch.config.resolve import ResolvedConfig
    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.planner.layouts.cost_estimate import CostEstimate
    from jaxdist.planner.layouts.space import PlanChoices

LOSSY_COMPRESSORS: Final[tuple[AlgorithmName, ...]] = (
    *("bf16", "fp8", "int8", "int4", "sign"),
    *("random_k", "top_k", "sparse", "aligned", "power"),
)
"""Ways of summing that lose something in a step."""

_MAX_MICROBATCHES: Final = 256
"""Microbatches that are tried at most."""


def parse_compressors(words: str | None) -> tuple[AlgorithmName, ...]:
    """Read the ways that `--lossy` names.

    Raises:
        BadInput: there is no such way, or it loses nothing.
    """
    if words == "all":
        return LOSSY_COMPRESSORS
    asked = tuple(word for word in (words or "").split(",") if word)
    for word in asked:
        if word not in LOSSY_COMPRESSORS:
            near = did_you_mean(word, LOSSY_COMPRESSORS)
            known = word in get_args(AlgorithmName)
            raise BadInput(
                f"{word} loses nothing" if known else f"no way of summing {word}",
                rule=f"--lossy takes all, or some of {', '.join(LOSSY_COMPRESSORS)}",
                values=f"--lossy {words}",
                remedy=f"did you mean {near}?" if near else "--lossy int8",
            )
    return tuple(way for way in LOSSY_COMPRESSORS if way in asked)


@dataclass(frozen=True, kw_only=True)
class LayoutQuery:
    """An experiment on some devices of a cluster."""

    resolved: "ResolvedConfig"
    """What was typed stays as it is, the rest may be chosen."""
    describer: "StepDescriber"
    """Its network."""
    cluster: "Cluster"
    """The machines."""
    devices: int
    """How many of them."""

    @cached_property
    def base_plan(self) -> Plan:
        """What no search changes: where the split of images ends, if that was typed.

        Raises:
            BadInput: it ends at a block that the network does not have.
        """
        plan = self.resolved.config.plan
        until = plan.remat_until if self._is_set("plan.remat_until") else ""
        placement = plan.placement if self._is_set("plan.placement") else ()
        plan = replace(plan, remat_until=until, placement=placement)
        if not self._is_set("plan.spatial_until"):
            return replace(plan, spatial_until="", spatial_then="repeat")
        known = [block.name for block in self.describer.profile.blocks[1:]]
        if plan.spatial_until and plan.spatial_until not in known:
            what, otherwise = "block behind the first", "plan.spatial_until="
            raise unknown_name_error(what, plan.spatial_until, known, otherwise)
        return plan

    def _is_set(self, key: str) -> bool:
        """Tell whether a setting was typed, and so stays."""
        return key in self.resolved.keys_from("command line")

    @cached_property
    def pinned_axes(self) -> dict[str, int]:
        """Axes whose devices were typed.

        Raises:
            BadInput: they are no part of the devices.
        """
        typed = self.resolved.keys_from("command line")
        mesh = self.resolved.config.plan.mesh
        found = {a: mesh.size(a) for a in EVERY if f"plan.mesh.{a}" in typed}
        if self.devices % math.prod(found.values()):
            said = ", ".join(f"plan.mesh.{a} = {n}" for a, n in found.items())
            fits = math.gcd(self.devices, math.prod(found.values()))
            raise BadInput(
                "the axes that were typed are no part of the devices",
                rule="--devices is a multiple of the product of the plan.mesh.* typed",
                values=f"{said}; --devices {self.devices}",
                remedy=(
                    f"--devices {math.prod(found.values())}",
                    *(f"plan.mesh.{a}={fits}" for a in [*found] if len(found) == 1),
                ),
            )
        return found

    def cost_estimate(self, compressors: tuple[AlgorithmName, ...]) -> "CostEstimate":
        """Return the space of the search, estimated.

        Args:
            compressors: ways of summing that may be chosen beside the exact one.

        Raises:
            BadInput: the network has no blocks to compute again as was typed.
        """
        from jaxdist.launch.training.job.job import task_network
        from jaxdist.planner.layouts.block_costs import BlockCosts
        from jaxdist.planner.layouts.cost_estimate import CostEstimate
        from jaxdist.planner.layouts.space import plan_space
        from jaxdist.planner.layouts.traffic_probes import probe_traffic
        from jaxdist.train import remat

        if self.base_plan.remat:
            remat.check_remat(self.base_plan, task_network(self.describer.task))
        subject, profile = self.describer, self.describer.profile
        device = self.cluster.device
        axes = tuple(axis for axis in self._axes if axis not in self.pinned_axes)
        samples = probe_traffic(
            self.base_plan,
            self.devices,
            (*axes, *self.pinned_axes),
            subject.describe,
            profile.parameter_bytes,
            device,
        )
        pieces = BlockCosts(
            profile=profile,
            device=device,
            dtype=subject.dtype,
            tensor_parallel_layers=samples.tensor_parallel_layers,
        )
        choices = self._choices(
            tuple(a for a in axes if a in samples.usable_axes), compressors
        )
        space = plan_space(
            self.base_plan,
            self.devices,
            choices,
            batch=profile.batch,
            blocks=max(1, len(profile.blocks)),
            fixed_axes=self.pinned_axes,
        )
        return CostEstimate(
            space=space,
            cluster=self.cluster,
            block_costs=pieces,
            traffic=samples,
            needs_margin=not subject.is_fast_to_trace,
        )

    def baseline_plans(self) -> list[Plan]:
        """Return the layouts that everybody asks about, with as many microbatches."""
        from jaxdist.planner.layouts.meshes import (
            multi_host_layouts,
            single_axis_layouts,
        )

        micro, host = self.describer.task.microbatches, self.cluster.levels[0].size
        axes = (
            () if self.pinned_axes else tuple(a for a in self._axes if a != "spatial_w")
        )
        plans = (
            *single_axis_layouts(self.base_plan, self.devices, axes),
            *multi_host_layouts(self.base_plan, self.devices, host, axes),
        )
        return [replace(plan, microbatches=micro) for plan in plans]

    @property
    def _axes(self) -> tuple[str, ...]:
        from jaxdist.planner.layouts.meshes import SEARCH_AXES

        images = "image" in self.describer.shapes
        return tuple(a for a in SEARCH_AXES if images or not a.startswith("spatial"))

    @property
    def _spatial_ends(self) -> tuple[AfterSpatial, ...]:
        """What devices may do behind the split of images, of what was not typed."""
        typed, plan = self.resolved.keys_from("command line"), self.resolved.config.plan
        if "plan.spatial_until" in typed and not plan.spatial_until:
            return ()
        if "plan.spatial_then" in typed:
            return (plan.spatial_then,)
        return get_args(AfterSpatial)

    def _choices(
        self, axes: tuple[str, ...], lossy: tuple[AlgorithmName, ...]
    ) -> "PlanChoices":
        from jaxdist.planner.layouts.space import SCHEDULE_CHOICES, PlanChoices

        typed, plan = self.resolved.keys_from("command line"), self.base_plan
        pipe, batch = plan.pipe, self.describer.profile.batch
        parts = [
            n for n in range(1, min(batch, _MAX_MICROBATCHES) + 1) if batch % n == 0
        ]
        given = {"optim.accumulate", "plan.microbatches"} & {*typed}
        own = {"plan.pipe.schedule", "plan.pipe.chunks", "plan.pipe.cuts"} & {*typed}
        again = {"plan.remat", "plan.remat_until"} & {*typed}
        exact: tuple[AlgorithmName, ...] = (plan.reduce.via,)
        return PlanChoices(
            axes=axes,
            microbatches=(self.describer.task.microbatches,) if given else (*parts,),
            orders=((pipe.schedule, pipe.chunks),) if own else SCHEDULE_CHOICES,
            remat=(plan.remat,) if again else (False, True),
            zeros=(plan.zero,) if "plan.zero" in typed else (1, 3),
            weights=(plan.weights,)
            if "plan.weights" in typed
            else get_args(TensorSplit),
            inside=() if "plan.placement" in typed else EVERY,
            ends=self._spatial_ends,
            ways=exact if "plan.reduce.via" in typed else (*exact, *lossy),
        )
