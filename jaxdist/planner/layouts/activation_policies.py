"""Which activations a plan keeps, computes again, or moves to the host.

Three kinds of plans are tried where all activations do not fit, beside those with
rematerialization of the first blocks:

    remat, some layers kept    those with the most FLOPs a byte, as many as fit
    nothing computed again     the largest activations wait on the host, as few as fit
    remat, inputs on the host  what each block is given waits there as well

The oracle prices all of them: computing again by a layer's forward seconds, a copy by
what computing does not hide of it. So the first plan of the ranking is never slower
than all remat, or all offload, by the same figures.

Source: Wahib et al. 2020, arXiv:2008.11421, KARMA, section 3.
"""

import fnmatch
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxdist.core.plan import Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.layers import Experts
from jaxdist.oracle.offload import has_loops, repeated_blocks
from jaxdist.planner.layouts.evaluated_plans import PlanEvaluator
from jaxdist.planner.layouts.refinement import REFINED_PLANS, FitCheck

Paths = tuple[str, ...]
"""Patterns of paths of layers, as a plan has them."""


@dataclass(frozen=True, kw_only=True)
class RepeatedLayer:
    """A layer that each block of a loop has."""

    patterns: Paths
    """What matches it in all blocks, and nothing else."""
    output_bytes: int
    """Bytes of its outputs in all blocks."""
    flops: int
    """FLOPs of its forward passes in all blocks."""


def repeated_layers(profile: Profile) -> list[RepeatedLayer]:
    """Return the layers with weights that equal blocks have, all blocks together.

    The last product of a block is left out: what follows it in the block is a sum,
    whose gradient reads nothing, so its output is neither kept nor computed again. So
    are mixtures of experts, of whose products it reads what is between them.
    """
    # Blocks of a loop share one program, so a policy is for all of them or none.
    looped = {name for run in repeated_blocks(profile) for name in run}
    names = [layer.name for layer in profile.layers]
    groups: dict[str, list[LayerProfile]] = defaultdict(list)
    lasts = {layer.block: layer.name for layer in profile.layers if layer.parameters}
    for layer in profile.layers:
        block, _, inner = layer.name.partition(".")
        is_last = lasts.get(block) == layer.name and layer.kind == "Linear"
        unread = is_last or layer.kind == Experts.__name__
        makes = layer.output_bytes and layer.parameters and not unread
        if block in looped and inner and makes:
            groups[inner].append(layer)
    found = []
    for inner, layers in groups.items():
        own = tuple(layer.name for layer in layers)
        # One pattern for all blocks is shorter in a plan file, unless it matches more.
        short = f"*.{inner}"
        alone = set(fnmatch.filter(names, short)) == {*own}
        found.append(
            RepeatedLayer(
                patterns=(short,) if alone else own,
                output_bytes=sum(layer.output_bytes for layer in layers),
                flops=sum(layer.flops_forward for layer in layers),
            )
        )
    return found


def search_activation_policies(
    evaluator: PlanEvaluator, profile: Profile, fits: FitCheck
) -> None:
    """Describe the first plans with remat with other policies for their activations.

    Args:
        evaluator: of plans that were described.
        profile: of the network.
        fits: describes a plan, and tells whether it fits.
    """
    if evaluator.cluster.device.is_cpu:
        return
    layers = repeated_layers(profile)
    # Of equals the largest first: each array that is kept is copied once in a loop.
    worth = sorted(layers, key=lambda x: (-x.flops / x.output_bytes, -x.flops))
    large = sorted(layers, key=lambda x: -x.output_bytes)
    inputs = tuple(name for run in repeated_blocks(profile) for name in run)

    described = [one.plan for one in evaluator.sorted()]
    described += evaluator.plans_without_memory
    first_of_mesh: dict[str, Plan] = {}
    for plan in described:
        if plan.remat and has_loops(plan, profile):
            first_of_mesh.setdefault(plan.title, replace(plan, remat_end=""))
    for plan in list(first_of_mesh.values())[:REFINED_PLANS]:
        if fits(plan.without_remat):
            continue
        # As many as fit, and as few as must: both by bisection.
        if fits(plan):
            saved = [
                replace(plan, remat_saves=_patterns(worth[:count]))
                for count in range(1, len(layers) + 1)
            ]
            # Only for its calls of `fits`, which describe plans as they are asked for:
            # memory grows with the count, so the last that fits is among those.
            bisect_left(saved, True, key=lambda one: not fits(one))
        else:
            fits(replace(plan, offload=inputs))
        if evaluator.cluster.host_link is not None:
            moved = [
                replace(plan.without_remat, offload=_patterns(large[:count]))
                for count in range(1, len(layers) + 1)
            ]
            bisect_left(moved, True, key=fits)


def _patterns(layers: Sequence[RepeatedLayer]) -> Paths:
    return sum((layer.patterns for layer in layers), ())
