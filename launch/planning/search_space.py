"""The space of a layout search: what may be chosen, and what was typed and stays."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, get_args

from jaxdist.core.axes import AXES as EVERY
from jaxdist.core.axes import CONTEXT_AXIS, EXPERT_AXIS, SPATIAL_AXES
from jaxdist.core.errors import BadInput, did_you_mean, unknown_name_error
from jaxdist.core.plan import AfterSpatial, ContextForm, Plan, TensorSplit
from jaxdist.core.plan.reduction import AlgorithmName

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.launch.config.resolve import ResolvedConfig
    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.planner.layouts.cost_estimate import CostEstimate

LOSSY_COMPRESSORS: Final[tuple[AlgorithmName, ...]] = (
    *("bf16", "fp8", "int8", "int4", "sign"),
    *("random_k", "top_k", "sparse", "aligned", "power"),
)
"""Compressors that change the sum of a step."""

_MAX_MICROBATCHES: Final = 256
"""Largest number of microbatches that is tried."""


def parse_compressors(words: str | None) -> tuple[AlgorithmName, ...]:
    """Return the compressors that `--compressors` names.

    Raises:
        BadInput: there is no such compressor, or it is exact.
    """
    if words == "all":
        return LOSSY_COMPRESSORS
    asked = tuple(word for word in (words or "").split(",") if word)
    for word in asked:
        if word not in LOSSY_COMPRESSORS:
            near = did_you_mean(word, LOSSY_COMPRESSORS)
            known = word in get_args(AlgorithmName)
            raise BadInput(
                f"{word} loses nothing" if known else f"no compressor {word}",
                rule="--compressors takes all, or some of "
                f"{', '.join(LOSSY_COMPRESSORS)}",
                values=f"--compressors {words}",
                remedy=f"did you mean {near}?" if near else "--compressors int8",
            )
    # In one order, whatever was typed: rankings of the same question are the same.
    return tuple(way for way in LOSSY_COMPRESSORS if way in asked)


@dataclass(frozen=True, kw_only=True)
class LayoutQuery:
    """An experiment on some devices of a cluster."""

    resolved: "ResolvedConfig"
    """The experiment; what was typed stays as it is, the rest may be chosen."""
    describer: "StepDescriber"
    """Its network."""
    cluster: "Cluster"
    """The machines."""
    devices: int
    """How many of them."""

    @cached_property
    def base_plan(self) -> Plan:
        """The plan with what no search changes.

        Raises:
            BadInput: the split of images ends at a block that the network has not.
        """
        typed, plan = self._typed, self.resolved.config.plan
        # What an experiment's own plan says of these is for its own mesh.
        plan = replace(
            plan,
            remat_end=plan.remat_end if "plan.remat_end" in typed else "",
            placement=plan.placement if "plan.placement" in typed else (),
            host_order=plan.host_order if "plan.host_order" in typed else (),
        )
        if "plan.spatial_end" not in typed:
            return replace(plan, spatial_end="", spatial_end_mode="repeat")
        # The first block is no end: images would not be split at all.
        known = [block.name for block in self.describer.profile.blocks[1:]]
        if plan.spatial_end and plan.spatial_end not in known:
            what, otherwise = "block behind the first", "plan.spatial_end="
            raise unknown_name_error(what, plan.spatial_end, known, otherwise)
        return plan

    @cached_property
    def _typed(self) -> frozenset[str]:
        """Settings that were typed, and so stay."""
        return frozenset(self.resolved.keys_from("command line"))

    @cached_property
    def pinned_axes(self) -> dict[str, int]:
        """Axes whose number of devices was typed.

        Raises:
            BadInput: their product does not divide the devices.
        """
        # An axis that only the experiment names is free: its plan is for other devices.
        mesh = self.resolved.config.plan.mesh
        found = {a: mesh.size(a) for a in EVERY if f"plan.mesh.{a}" in self._typed}
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
            compressors: lossy compressors that may be chosen beside the exact sum.

        Raises:
            BadInput: `plan.remat` was typed, of a network without blocks.
        """
        from jaxdist.launch.training.job.job import task_network
        from jaxdist.planner.layouts.block_costs import BlockCosts
        from jaxdist.planner.layouts.cost_estimate import CostEstimate
        from jaxdist.planner.layouts.space import (
            SCHEDULE_CHOICES,
            PlanChoices,
            host_group_orders,
            plan_space,
        )
        from jaxdist.planner.layouts.traffic_probes import probe_traffic
        from jaxdist.train import remat

        plan, typed, describer = self.base_plan, self._typed, self.describer
        if plan.remat:
            remat.check_remat(plan, task_network(describer.task))
        profile, device = describer.profile, self.cluster.device
        # Pinned axes are probed too, since their traffic is part of every plan.
        axes = tuple(axis for axis in self._axes if axis not in self.pinned_axes)
        # Traffic of each axis alone, from which that of thousands of plans is
        # estimated.
        traffic = probe_traffic(
            plan,
            self.devices,
            (*axes, *self.pinned_axes),
            describer.describe,
            profile.parameter_bytes,
            device,
        )

        # What was typed is one choice; all else has the choices of the search. Settings
        # that mean little without each other (schedule, chunks and cuts) are tied.
        batch, most = profile.batch, min(profile.batch, _MAX_MICROBATCHES)
        # Only divisors of the batch: microbatches have the same number of samples.
        parts = tuple(n for n in range(1, most + 1) if batch % n == 0)
        if {"optim.accumulate", "plan.microbatches"} & typed:
            parts = (describer.task.microbatches,)
        orders = SCHEDULE_CHOICES
        if {"plan.pipe.schedule", "plan.pipe.chunks", "plan.pipe.cuts"} & typed:
            orders = ((plan.pipe.schedule, plan.pipe.chunks),)
        remat_typed = {"plan.remat", "plan.remat_end"} & typed
        weights_typed = "plan.tensor_strategy" in typed
        ends: tuple[AfterSpatial, ...] = get_args(AfterSpatial)
        asked = self.resolved.config.plan
        if "plan.spatial_end" in typed and not asked.spatial_end:
            ends = ()
        elif "plan.spatial_end_mode" in typed:
            ends = (asked.spatial_end_mode,)
        # Ways to sum exactly are compared by the ranking itself, for the best plans.
        exact: tuple[AlgorithmName, ...] = (plan.reduce.algorithm,)
        choices = PlanChoices(
            axes=tuple(a for a in axes if a in traffic.usable_axes),
            microbatches=parts,
            orders=orders,
            remat=(plan.remat,) if remat_typed else (False, True),
            zeros=(plan.zero,) if "plan.zero" in typed else (1, 3),
            weights=(plan.tensor_strategy,) if weights_typed else get_args(TensorSplit),
            contexts=(plan.context,)
            if "plan.context" in typed
            else get_args(ContextForm),
            inside=() if "plan.placement" in typed else EVERY,
            host_orders=()
            if "plan.host_order" in typed
            else host_group_orders(self.cluster),
            ends=ends,
            ways=exact if "plan.reduce.algorithm" in typed else (*exact, *compressors),
        )
        tokens = describer.shapes.get("tokens")
        space = plan_space(
            plan,
            self.devices,
            choices,
            batch=batch,
            blocks=max(1, len(profile.blocks)),
            tokens=tokens.shape[1] if tokens is not None else 0,
            experts=self._experts,
            fixed_axes=self.pinned_axes,
        )
        return CostEstimate(
            space=space,
            cluster=self.cluster,
            block_costs=BlockCosts(
                profile=profile,
                device=device,
                dtype=describer.dtype,
                tensor_parallel_layers=traffic.tensor_parallel_layers,
            ),
            traffic=traffic,
            # Steps that are slow to trace are not traced: their memory is less certain.
            needs_margin=not describer.is_fast_to_trace,
        )

    def baseline_plans(self) -> list[Plan]:
        """Return well-known layouts (data parallel, ...), to say why they lost."""
        from jaxdist.planner.layouts.space import (
            multi_host_layouts,
            single_axis_layouts,
        )

        host = self.cluster.levels[0].size
        # Splits of width are searched, but nobody asks why they lost: height is as
        # good.
        axes = tuple(a for a in self._axes if a != "spatial_w")
        axes = () if self.pinned_axes else axes
        plans = (
            *single_axis_layouts(self.base_plan, self.devices, axes),
            *multi_host_layouts(self.base_plan, self.devices, host, axes),
        )
        # As many microbatches as the experiment has, so that they compare as they are.
        micro = self.describer.task.microbatches
        return [replace(plan, microbatches=micro) for plan in plans]

    @cached_property
    def _experts(self) -> int:
        """Experts of the network, of which devices have equal parts; 0: none."""
        from jaxdist.launch.training.job.job import task_network
        from jaxdist.partition.expert_parallel import expert_layers

        layers = expert_layers(task_network(self.describer.task)).values()
        return math.gcd(*(layer.router.shape[-1] for layer in layers))

    @property
    def _axes(self) -> tuple[str, ...]:
        from jaxdist.planner.layouts.space import SEARCH_AXES

        # Text has no height or width to split, and images have no tokens.
        has = {"image": SPATIAL_AXES, "tokens": (CONTEXT_AXIS,)}
        shapes = self.describer.shapes
        others = {a for key, axes in has.items() if key not in shapes for a in axes}
        others |= set() if self._experts else {EXPERT_AXIS}
        return tuple(axis for axis in SEARCH_AXES if axis not in others)
