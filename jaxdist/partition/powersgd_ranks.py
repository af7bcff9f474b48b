"""Ranks: how thin PowerSGD's matrices are, by part of the network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxdist.collectives.compress.method import AllReduceAlgorithm
from jaxdist.collectives.compress.powersgd import PowerSGD
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding


def leaf_algorithms(
    plan: Plan, leaves: Sequence[LeafSharding], algorithm: AllReduceAlgorithm
) -> list[AllReduceAlgorithm]:
    """Return how each gradient is compressed, PowerSGD with a rank of its own.

    Raises:
        BadInput: ranks of another method, no number, or a path that nothing has.
    """
    ranks = dict(map(_parse_rank, plan.reduce.ranks))
    if ranks and not isinstance(algorithm, PowerSGD):
        raise BadInput(
            f"{plan.reduce.via} has no ranks",
            rule="plan.reduce.ranks are of plan.reduce.via=power",
            values=f"plan.reduce.ranks = {','.join(plan.reduce.ranks)}",
            remedy=("plan.reduce.via=power", "or plan.reduce.ranks="),
        )
    names = [f"{leaf.name.replace('/', '.')}." for leaf in leaves]
    for path in ranks:
        if not any(name.startswith(f"{path}.") for name in names):
            blocks = sorted({name.split(".")[0] for name in names})
            near = did_you_mean(path, blocks)
            raise BadInput(
                f"no parameters are at {path}",
                rule="plan.reduce.ranks are PATH:RANK, paths as profiles have them",
                values=f"the network has {', '.join(blocks)}",
                remedy=f"did you mean {near}?" if near else f"{blocks[0]}:2",
            )
    return [_with_rank(algorithm, ranks, name) for name in names]


def _with_rank(
    method: AllReduceAlgorithm, ranks: Mapping[str, int], name: str
) -> AllReduceAlgorithm:
    """Give PowerSGD the rank of the longest path that a name begins with."""
    found = [path for path in ranks if name.startswith(f"{path}.")]
    if not (found and isinstance(method, PowerSGD)):
        return method
    return replace(method, rank=ranks[max(found, key=len)])


def _parse_rank(word: str) -> tuple[str, int]:
    path, _, rank = word.rpartition(":")
    if not (path and rank.isdigit() and int(rank)):
        raise BadInput(
            f"{word} is no rank of a part of the network",
            rule="plan.reduce.ranks are PATH:RANK, separated by commas",
            values=f"plan.reduce.ranks has {word!r}",
            remedy="plan.reduce.ranks=block3:8,head:2",
        )
    return path, int(rank)
