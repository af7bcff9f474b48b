"""Two levels: exact sums inside a host, and another method across hosts.

    reduce-scatter   inside, exact: each device has 1 / g of its host's sum
    across           the part, by any method, between devices of one place in the host
    all-gather       inside, exact

The slow links carry 1 / g of the numbers, and fewer by what the method saves. The host
is the innermost of the axes.
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
    """Another method, across hosts alone."""

    inter_host: FlatAllReduce = field(default_factory=TopKAllGather)
    """How the parts of hosts are summed."""

    @property
    def name(self) -> str:
        """What it does."""
        return "hierarchical"

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Sum inside, across, and put together inside."""
        *outer, inner = _two(axes)
        rows = reduce_scatter_array(x, lax.axis_size(inner))
        part = lax.psum_scatter(rows, inner)
        summed, sent = self.inter_host.all_reduce_vector(part, step, tuple(outer))
        total = lax.all_gather(summed, inner)
        # What was not sent of the host's part is for its owner to keep.
        given = rows.at[axis_rank((inner,))].add(sent - part)
        return total.reshape(-1)[: x.size], given.reshape(-1)[: x.size]

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the three phases."""
        *outer, inner = _two(tuple(sizes))
        part = -(-elements // sizes[inner])
        size = part * itemsize
        yield Payload(kind="reduce-scatter", axes=(inner,), payload_bytes=size)
        yield from self.inter_host.vector_payloads(
            part, itemsize, {a: sizes[a] for a in outer}
        )
        yield Payload(
            kind="all-gather", axes=(inner,), payload_bytes=size * sizes[inner]
        )


def _two(axes: Axes) -> Axes:
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
        remedy='psum(x, ("data", "fsdp"), via="hierarchical")',
    )
