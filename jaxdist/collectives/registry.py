"""Names of the ways to sum, and what each stands for unless it is told otherwise."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from jaxdist.collectives.algorithms.registry import ALGORITHMS
from jaxdist.collectives.compress.bf16 import Cast
from jaxdist.collectives.compress.block_quantization import Blocks
from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.compress.exact import Exact
from jaxdist.collectives.compress.hierarchical import Hierarchical
from jaxdist.collectives.compress.method import Method
from jaxdist.collectives.compress.powersgd import Power
from jaxdist.collectives.compress.random_k import RandomK
from jaxdist.collectives.compress.reduce_scatter_allgather import TwoPhase, Vote
from jaxdist.collectives.compress.scheduled_exact import Listed
from jaxdist.collectives.compress.shared_top_k import Aligned
from jaxdist.collectives.compress.sign import Signs
from jaxdist.collectives.compress.sparse import Sparse
from jaxdist.collectives.compress.top_k_allgather import Gathered
from jaxdist.collectives.compress.top_k_codec import Picks
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan.reduction import Narrow, Reduce

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: method
        for method in (
            Exact(),
            TwoPhase(codec=Cast()),
            TwoPhase(codec=Blocks(kind="fp8")),
            TwoPhase(codec=Blocks(kind="int8")),
            TwoPhase(codec=Blocks(kind="int4")),
            Vote(codec=Signs()),
            RandomK(),
            Gathered(codec=Picks()),
            Sparse(),
            Aligned(),
            Hierarchical(),
            Power(),
            *(Listed(algorithm=name) for name in ALGORITHMS),
        )
    }
)
"""Every way by its name."""


def set_up(asked: Reduce) -> Method:
    """Return the method that a plan asks for, with the settings that it has.

    >>> set_up(Reduce(via="power", rank=2))
    Power(rank=2)
    """
    method, picks = METHODS[asked.via], Picks(density=asked.density)
    match method:
        case TwoPhase(codec=Blocks() as codec):
            return replace(method, codec=replace(codec, block=asked.block))
        case TwoPhase(codec=Picks()) | Gathered():
            return replace(method, codec=picks)
        case RandomK() | Aligned():
            return replace(method, density=asked.density)
        case Hierarchical():
            return replace(method, across=Gathered(codec=picks))
        case Power():
            return replace(method, rank=asked.rank)
    return method


def narrow(via: Narrow, block: int) -> tuple[Method, Codec | None]:
    """Return a stateless way to sum, and the codec of its messages.

    >>> narrow("exact", 256)
    (Exact(), None)
    """
    method = set_up(Reduce(via=via, block=block))
    return method, method.codec if isinstance(method, TwoPhase) else None


def method_of(via: str | Method) -> Method:
    """Return the method that a name stands for, or the method itself.

    Raises:
        BadInput: no method has this name.

    >>> method_of("int8").name
    'int8'
    """
    if isinstance(via, Method):
        return via
    if via in METHODS:
        return METHODS[via]
    near = did_you_mean(via, METHODS)
    raise BadInput(
        f"no way to sum named {via}",
        rule="via is a name, or a method of jaxdist.collectives.compress",
        values=f"via = {via}; there are {', '.join(METHODS)}, auto",
        remedy=f'via="{near or "int8"}"',
    )
