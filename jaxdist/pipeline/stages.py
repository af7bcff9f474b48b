"""Stages: the blocks of a network distributed along the pipe axis.

Stage k of a chain has the blocks from its cut to the next, and the auxiliary heads that
read them.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.pipeline.stage_placement import StagePlacement, stage_placement

BlockNames = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stages:
    """A network cut into stages."""

    blocks: tuple[BlockNames, ...]
    """Names of the blocks of each stage, in order."""
    placement: StagePlacement
    """Where along the pipe axis they are."""

    @property
    def count(self) -> int:
        """Stages in all."""
        return len(self.blocks)

    def stage_of(self, block: str) -> int:
        """Return the stage that has a block."""
        return next(k for k, names in enumerate(self.blocks) if block in names)


def cut_network(
    plan: Plan, network: Any, block_flops: Callable[[], Mapping[str, int]]
) -> Stages:
    """Cut a network into the stages of a plan.

    Args:
        plan: says where, or leaves it open: then the largest stage has as few FLOPs as
            possible.
        network: has a `chain()` of named blocks.
        block_flops: FLOPs of its blocks by name; called only where the plan leaves
            cuts open.

    Raises:
        BadInput: the network is no chain, a cut is before no block of it, or there are
            more stages than blocks.
    """
    chain = tuple(network.chain()) if hasattr(network, "chain") else ()
    if not chain or not all(isinstance(block, nnx.Module) for _, block in chain):
        raise BadInput(
            f"{type(network).__name__} cannot be cut into stages",
            rule="a network with stages has chain(): its blocks, which are modules, "
            "by name and in order",
            values=f"plan.mesh.pipe = {plan.mesh.pipe}",
            remedy=f"plan.mesh.data={plan.mesh.data * plan.mesh.pipe} plan.mesh.pipe=1",
        )
    names, cuts = tuple(name for name, _ in chain), plan.pipe.cuts
    _check_stage_count(plan, names)
    if cuts:
        starts = [_cut_index(cut, names) for cut in cuts]
        if sorted(starts) != starts:
            raise BadInput(
                "the cuts of the network are not in its order",
                rule="plan.pipe.cuts follows the order of the blocks",
                values=f"plan.pipe.cuts = {','.join(cuts)}",
                remedy=f"plan.pipe.cuts={','.join(names[i] for i in sorted(starts))}",
            )
    else:
        flops = block_flops()
        starts = balanced_cuts([flops[name] for name in names], plan.stages)
    parts = tuple(names[a:b] for a, b in itertools.pairwise([0, *starts, len(names)]))
    return Stages(blocks=parts, placement=stage_placement(plan))


def balanced_cuts(costs: Sequence[int], parts: int) -> list[int]:
    """Return the starts of all parts but the first that minimize the largest cost.

    >>> balanced_cuts([4, 1, 1, 2, 6], 3)
    [1, 4]
    """
    # Dynamic program over prefixes: {end: (cost of the largest part, starts)}, for one
    # part more in each round.
    best = {0: (0, list[int]())}
    for part in range(1, parts + 1):
        found: dict[int, tuple[int, list[int]]] = {}
        for end in range(part, len(costs) - (parts - part) + 1):
            found[end] = min(
                (max(most, sum(costs[start:end])), [*starts, start])
                for start, (most, starts) in best.items()
                if start < end
            )
        best = found
    return best[len(costs)][1][1:]


def variable_ids(block: Any) -> set[int]:
    """Return the ids of the variables that a block reaches, shared ones included."""
    nodes = (node for _, node in nnx.iter_graph(block))
    return {id(node) for node in nodes if isinstance(node, nnx.Variable)}


def run(model: Any, blocks: BlockNames, activations: Any) -> Any:
    """Apply some blocks of a network to the activations of the block before them.

    Args:
        model: a chain; auxiliary heads, if any, are applied in training alone.
        blocks: names, of consecutive blocks.
        activations: (output of the block before, outputs of heads so far).

    Returns:
        The same after the last of the blocks.
    """
    x, others = activations
    # Auxiliary heads exist for their gradients alone (GoogLeNet), so evaluation skips
    # them.
    heads = model.heads() if hasattr(model, "heads") else {}
    if getattr(model, "deterministic", False):
        heads = {}
    for name, block in model.chain():
        if name not in blocks:
            continue
        with jax.named_scope(name):
            x = block(x)
        if name in heads:
            with jax.named_scope(heads[name][0]):
                others = (*others, heads[name][1](x))
    return x, others


def network_outputs(activations: Any) -> Any:
    """Return the outputs of a network from the activations of its last block."""
    x, others = activations
    return (x, *others) if others else x


def _cut_index(cut: str, names: Sequence[str]) -> int:
    if cut in names[1:]:
        return names.index(cut)
    near = did_you_mean(cut, names[1:])
    first = "; no stage begins before the first block" if cut == names[0] else ""
    raise BadInput(
        f"the network has no block {cut} to cut before",
        rule=f"plan.pipe.cuts names the first block of each later stage{first}",
        values=f"plan.pipe.cuts has {cut}; blocks: {', '.join(names)}",
        remedy=f"plan.pipe.cuts={near}" if near else "plan.pipe.cuts= balances FLOPs",
    )


def _check_stage_count(plan: Plan, names: BlockNames) -> None:
    """Refuse more stages than blocks, and cuts into other numbers of stages."""
    if plan.stages > len(names):
        # The remedy has to divide the stages that were asked for, so that chunks still
        # fit.
        fits = max(n for n in range(1, len(names) + 1) if not plan.stages % n)
        raise BadInput(
            "there are more stages than blocks",
            rule="a stage has at least one block",
            values=f"{plan.stages} stages, {len(names)} blocks: {', '.join(names)}",
            remedy=f"plan.mesh.pipe={fits} plan.pipe.chunks=1",
        )
    asked = len(plan.pipe.cuts)
    if asked and asked + 1 != plan.stages:
        raise BadInput(
            "the cuts make another number of stages than there are",
            rule="plan.pipe.cuts has a block for each of plan.mesh.pipe x "
            "plan.pipe.chunks stages but the first",
            values=f"plan.pipe.cuts = {','.join(plan.pipe.cuts)}: {asked + 1} stages; "
            f"{plan.title} has {plan.stages}",
            remedy=(
                "plan.pipe.cuts= balances FLOPs",
                f"plan.mesh.pipe={asked + 1} plan.pipe.chunks=1",
            ),
        )
