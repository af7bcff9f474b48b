"""Hierarchical all-reduce: exact inside a host, another algorithm across hosts.

    reduce-scatter   inside, exact: each of g devices has 1 / g of its host's sum
    across           the part, by any algorithm, between devices of one rank in the host
    all-gather       inside, exact

The slow links carry 1 / g of the elements, and fewer by what the algorithm saves. The
host is the innermost of the axes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jax
from jax import lax

from jaxdist.collectives.compress.method import (
    Axes,
    FlatAllReduce,
    Payload,
    axis_rank,
    reduce_scatter_array,
)
from jaxdist.collectives.compress.top_k_allgather import TopKAllGather
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class HierarchicalAllReduce(FlatAllReduce):
    """Exact inside a host, `inter_host` across hosts."""

    inter_host: FlatAllReduce = field(default_factory=TopKAllGather)
    """How the parts of hosts are summed."""

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "hierarchical"

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Scatter inside, sum across, and gather inside."""
        *outer, inner = _require_two(axes)
        rows = reduce_scatter_array(x, lax.axis_size(inner))
        # Each device of a host has its own part, so all network cards work at once.
        part = lax.psum_scatter(rows, inner)
        summed, sent = self.inter_host.all_reduce_vector(part, step, tuple(outer))
        total = lax.all_gather(summed, inner)
        # What was not sent of the host's part is the residual of its owner.
        given = rows.at[axis_rank((inner,))].add(sent - part)
        return total.reshape(-1)[: x.size], given.reshape(-1)[: x.size]

    def index_count(self, elements: int, sizes: Mapping[str, int]) -> int:
        """Return the indices of the whole vector, or of a part across hosts."""
        *outer, inner = _require_two(tuple(sizes))
        part = -(-elements // sizes[inner])
        across = self.inter_host.index_count(part, {a: sizes[a] for a in outer})
        return max(elements, across)

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the three phases."""
        *outer, inner = _require_two(tuple(sizes))
        part = -(-elements // sizes[inner])
        size = part * itemsize
        yield Payload(kind="reduce-scatter", axes=(inner,), payload_bytes=size)
        yield from self.inter_host.vector_payloads(
            part, itemsize, {a: sizes[a] for a in outer}
        )
        gathered = size * sizes[inner]
        yield Payload(kind="all-gather", axes=(inner,), payload_bytes=gathered)


def _require_two(axes: Axes) -> Axes:
    """Refuse a single axis.

    Raises:
        BadInput: there is no axis inside a host, or none across.
    """
    if len(axes) > 1:
        return axes
    raise BadInput(
        "a hierarchical sum needs two levels",
        rule="axes are named from the outside in, the last one inside a host, each "
        "with more than one device",
        values=f"axes = {', '.join(axes)}",
        remedy='psum(x, ("data", "fsdp"), algorithm="hierarchical")',
    )
