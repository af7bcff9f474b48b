"""All-reduce algorithms by name, with their default settings."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.compress.codec import (
    Bf16Codec,
    BlockQuantizationCodec,
    Codec,
    SignCodec,
)
from jaxdist.collectives.compress.exact import ExactAllReduce, ScheduledAllReduce
from jaxdist.collectives.compress.hierarchical import HierarchicalAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm
from jaxdist.collectives.compress.powersgd import PowerSGD
from jaxdist.collectives.compress.random_k import RandomK
from jaxdist.collectives.compress.reduce_scatter_allgather import (
    MajorityVote,
    TwoPhaseAllReduce,
)
from jaxdist.collectives.compress.shared_top_k import SharedTopK
from jaxdist.collectives.compress.sparse import OkTopK
from jaxdist.collectives.compress.top_k_allgather import TopKAllGather
from jaxdist.collectives.compress.top_k_codec import TopKCodec
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan.reduction import ReductionConfig, StatelessCompressor

ALL_REDUCE_ALGORITHMS: Final[Mapping[str, AllReduceAlgorithm]] = MappingProxyType(
    {
        method.name: method
        for method in (
            ExactAllReduce(),
            TwoPhaseAllReduce(codec=Bf16Codec()),
            TwoPhaseAllReduce(codec=BlockQuantizationCodec(dtype="fp8")),
            TwoPhaseAllReduce(codec=BlockQuantizationCodec(dtype="int8")),
            TwoPhaseAllReduce(codec=BlockQuantizationCodec(dtype="int4")),
            MajorityVote(codec=SignCodec()),
            RandomK(),
            TopKAllGather(codec=TopKCodec()),
            OkTopK(),
            SharedTopK(),
            HierarchicalAllReduce(),
            PowerSGD(),
            *(ScheduledAllReduce(schedule=name) for name in SCHEDULES),
        )
    }
)
"""Every algorithm by its name."""


def make_algorithm(config: ReductionConfig) -> AllReduceAlgorithm:
    """Return the algorithm of a plan, with the plan's settings.

    >>> make_algorithm(ReductionConfig(algorithm="power", rank=2))
    PowerSGD(rank=2)
    """
    # Settings of a plan replace the defaults; other algorithms have none.
    method = ALL_REDUCE_ALGORITHMS[config.algorithm]
    picks = TopKCodec(density=config.density)
    match method:
        case TwoPhaseAllReduce(codec=BlockQuantizationCodec() as codec):
            return replace(method, codec=replace(codec, block_size=config.block_size))
        case TwoPhaseAllReduce(codec=TopKCodec()) | TopKAllGather():
            return replace(method, codec=picks)
        case RandomK() | SharedTopK():
            return replace(method, density=config.density)
        case HierarchicalAllReduce():
            return replace(method, inter_host=TopKAllGather(codec=picks))
        case PowerSGD():
            return replace(method, rank=config.rank)
    return method


def make_stateless_compressor(
    name: StatelessCompressor, block_size: int
) -> tuple[AllReduceAlgorithm, Codec | None]:
    """Return a stateless algorithm, and the codec of its messages.

    >>> make_stateless_compressor("exact", 256)
    (ExactAllReduce(), None)
    """
    method = make_algorithm(ReductionConfig(algorithm=name, block_size=block_size))
    return method, method.codec if isinstance(method, TwoPhaseAllReduce) else None


def resolve_algorithm(algorithm: str | AllReduceAlgorithm) -> AllReduceAlgorithm:
    """Return the algorithm of a name, or the algorithm itself.

    Raises:
        BadInput: no algorithm has this name.

    >>> resolve_algorithm("int8").name
    'int8'
    """
    if isinstance(algorithm, AllReduceAlgorithm):
        return algorithm
    if algorithm in ALL_REDUCE_ALGORITHMS:
        return ALL_REDUCE_ALGORITHMS[algorithm]
    near = did_you_mean(algorithm, ALL_REDUCE_ALGORITHMS)
    raise BadInput(
        f"no all-reduce algorithm named {algorithm}",
        rule="algorithm is a name, or a method of jaxdist.collectives.compress",
        values=f"algorithm = {algorithm}; "
        f"there are {', '.join(ALL_REDUCE_ALGORITHMS)}, auto",
        remedy=f'algorithm="{near or "int8"}"',
    )
