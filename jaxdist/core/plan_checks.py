"""Plan checks: settings that no plan has, whatever the network and the devices are."""

from typing import TYPE_CHECKING

from jaxdist.core.axes import AXES
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.placement import check_placement

if TYPE_CHECKING:
    from jaxdist.core.plan import Plan


def check_plan(plan: "Plan") -> None:
    """Refuse settings that do not go together.

    Raises:
        BadInput: with the rule, the values and what to type instead.
    """
    _check_idle(plan)
    check_placement(plan.placement)
    _check_split(plan)
    _check_replicas(plan)
    _check_microbatches(plan)
    _check_remat(plan)


def _check_idle(plan: "Plan") -> None:
    """Refuse names that are no axes."""
    for name in plan.idle:
        if name not in AXES:
            near = did_you_mean(name, AXES) or ", ".join(AXES)
            raise BadInput(f"no mesh axis {name}", remedy=f"did you mean {near}?")


def _check_split(plan: "Plan") -> None:
    """Refuse an end of a split of images that is none."""
    if plan.spatial_until and plan.mesh.spatial_shards == 1:
        raise BadInput(
            "no images are split that could be gathered",
            rule="plan.spatial_until is for a spatial axis larger than one",
            values=f"plan.spatial_until = {plan.spatial_until}, "
            "every spatial axis has one device",
            remedy=("plan.mesh.spatial_h=2", "plan.spatial_until="),
        )
    if plan.spatial_then == "samples" and not plan.spatial_until:
        raise BadInput(
            "rows are exchanged for samples nowhere",
            rule="plan.spatial_then is for plan.spatial_until, the block where",
            values="plan.spatial_then = samples, plan.spatial_until is empty",
            remedy=("plan.spatial_until=head", "plan.spatial_then=repeat"),
        )


def _check_microbatches(plan: "Plan") -> None:
    """Refuse fewer parts than none."""
    if plan.microbatches < 0:
        raise BadInput(
            "a plan has no such number of microbatches",
            rule="plan.microbatches is a number of parts, or 0, which leaves it to "
            "optim.accumulate",
            values=f"plan.microbatches = {plan.microbatches}",
            remedy="plan.microbatches=0",
        )


def _check_remat(plan: "Plan") -> None:
    """Refuse an end of what is computed again where nothing is."""
    if plan.remat_until and not plan.remat:
        raise BadInput(
            "no blocks are computed again that could end",
            rule="plan.remat_until is for plan.remat=true",
            values=f"plan.remat_until = {plan.remat_until}, plan.remat = False",
            remedy=("plan.remat=true", "plan.remat_until="),
        )


def _check_replicas(plan: "Plan") -> None:
    """Refuse replicas of stages that are not the devices of the pipe axis."""
    replicas, devices = plan.pipe.replicas, plan.mesh.pipe
    if replicas and (min(replicas) < 1 or sum(replicas) != devices):
        own = [max(1, count) for count in replicas]
        raise BadInput(
            "the replicas of stages are not the devices of the pipe axis",
            rule="plan.pipe.replicas has the devices of each stage, at least one each, "
            "and their sum is plan.mesh.pipe",
            values=f"plan.pipe.replicas = {','.join(map(str, replicas))}, "
            f"plan.mesh.pipe = {devices}",
            remedy=f"plan.pipe.replicas={','.join(map(str, own))} "
            f"plan.mesh.pipe={sum(own)}",
        )
