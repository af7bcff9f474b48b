"""Hiding: collectives that go on while a device computes what does not need them.

    hidden = o (A + B - max over k of (a_1 + ... + a_k + b_k + ... + b_n))

Of layers in the order in which a pass comes to them, a and b are the seconds of what is
done first and of what needs it, A and B their sums, and the maximum is how long two
workers take, one for each (Johnson 1954, two machines in a row). o is the cluster's
`overlap`: t = comp + sum (1 - o) comm, correction 2 to ParaDL (arXiv 2104.09075), for
what can overlap.

    gathers    parameters that fsdp shares out, then the pass that reads them, forward
               and, from the last layer to the first, backward; in each microbatch
    sums       a layer's backward pass, then the sum of its gradients, which have what
               gathers leave of that pass; buckets are summed when they are full

The bytes of a layer's parameters say its part of what moves. What comes behind a loop
has no pass to hide behind: sums of several microbatches, all of a pipeline, parameters
that are put together after the update (`plan.zero=1`). What layers say to each other is
needed at once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.cluster import Cluster
from jaxdist.oracle.collective_times import traffic_seconds
from jaxdist.oracle.compute_times import microbatch_layer_times
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.fsdp import FSDP_AXIS
from jaxdist.partition.gradient_buckets import BUCKET_SCOPE
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.traffic import PlannedCollective

FloatArray = NDArray[np.float64]
_ALL_REDUCE_SCOPE: Final = "reduce_gradients"
"""How the scope of sums of whole gradients begins."""


@dataclass(frozen=True, kw_only=True)
class CollectiveOverlap:
    """Collectives beside one pass of a step."""

    compute_pass: str
    """`forward` or `backward`: the pass."""
    collective_seconds: Mapping[str, float]
    """Their seconds by term, as if nothing overlapped."""
    compute_seconds: float
    """Seconds of the pass that nothing else is hidden behind."""
    concurrent_seconds: float
    """Seconds in which both can go on."""
    overlap_fraction: float
    """Share of these in which both do."""

    @property
    def overlapped_seconds(self) -> float:
        """Seconds that are hidden."""
        return self.overlap_fraction * self.concurrent_seconds

    @property
    def overlapped_by_term(self) -> dict[str, float]:
        """The same by term, as the seconds of each."""
        whole = sum(self.collective_seconds.values())
        return {
            term: self.overlapped_seconds * s / whole
            for term, s in self.collective_seconds.items()
        }


def concurrent_time(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the seconds in which two workers work at the same time.

    Args:
        first: seconds of each piece at the first worker, [..., pieces].
        second: the same at the second, who may not have it before.

    >>> float(concurrent_time(np.ones(4), np.ones(4)))
    3.0
    """
    behind = np.cumsum(second[..., ::-1], axis=-1)[..., ::-1]
    longest = (np.cumsum(first, axis=-1) + behind).max(axis=-1)
    return np.maximum(0.0, first.sum(axis=-1) + second.sum(axis=-1) - longest)


def collective_overlaps(
    case: StepDescription, cluster: Cluster, ledger: Ledger
) -> tuple[CollectiveOverlap, ...]:
    """Return what a step hides behind its passes.

    Args:
        case: network, layout and traffic.
        cluster: machines.
        ledger: what the step's collectives move.
    """
    if not cluster.overlap.value or case.plan.stages > 1:
        return ()
    passes = _layer_passes(case, cluster)
    found = [*_gather_overlaps(case, cluster, ledger, passes)]
    if case.microbatches == 1:
        taken = sum(
            one.overlapped_seconds for one in found if one.compute_pass == "backward"
        )
        found += _reduction_overlaps(case, cluster, ledger, passes, taken)
    return tuple(one for one in found if one.concurrent_seconds > 0)


def total_overlap(overlaps: Iterable[CollectiveOverlap]) -> dict[str, float]:
    """Return the seconds that are hidden, by term."""
    total: Counter[str] = Counter()
    for one in overlaps:
        total.update(one.overlapped_by_term)
    return dict(total)


@dataclass(frozen=True, kw_only=True)
class _LayerPasses:
    """A step's passes by layer, in the order of the network."""

    forward: FloatArray
    """Seconds of a step."""
    backward: FloatArray
    """The same."""
    parameter_bytes: FloatArray
    """Those of parameters."""

    @property
    def parameter_shares(self) -> FloatArray:
        """The part that each layer has of the parameters."""
        shares: FloatArray = self.parameter_bytes / max(1.0, self.parameter_bytes.sum())
        return shares


def _layer_passes(case: StepDescription, cluster: Cluster) -> _LayerPasses:
    late = case.microbatches * (1 + cluster.jitter.value)
    layers, spent = zip(*microbatch_layer_times(case, cluster.device, 0), strict=True)
    return _LayerPasses(
        forward=late * np.array([one.forward for one in spent]),
        backward=late * np.array([one.backward for one in spent]),
        parameter_bytes=np.array([float(layer.parameter_bytes) for layer in layers]),
    )


def _gather_overlaps(
    case: StepDescription, cluster: Cluster, ledger: Ledger, passes: _LayerPasses
) -> Iterator[CollectiveOverlap]:
    """Yield parameters that fsdp shares out, beside the passes that read them."""
    own = [r for r in ledger.rows if r.what == "parameters" and r.axes == (FSDP_AXIS,)]
    if case.plan.zero != 3:
        return
    once = case.microbatches
    for behind, rows, computed, shares in (
        (
            "forward",
            (_with_array_count(row, once) for row in own),
            passes.forward,
            passes.parameter_shares,
        ),
        (
            "backward",
            (_with_array_count(row, row.arrays - once) for row in own),
            passes.backward[::-1],
            passes.parameter_shares[::-1],
        ),
    ):
        moved = _seconds_by_term(ledger, rows, case, cluster)
        fetched = sum(moved.values()) * shares
        yield CollectiveOverlap(
            compute_pass=behind,
            collective_seconds=moved,
            compute_seconds=float(computed.sum()),
            concurrent_seconds=float(concurrent_time(fetched, computed)),
            overlap_fraction=cluster.overlap.value,
        )


def _reduction_overlaps(
    case: StepDescription,
    cluster: Cluster,
    ledger: Ledger,
    passes: _LayerPasses,
    used_seconds: float,
) -> Iterator[CollectiveOverlap]:
    """Yield sums of gradients beside what is left of the backward pass."""
    own = [row for row in ledger.rows if _is_gradient_reduction(row)]
    moved = _seconds_by_term(ledger, own, case, cluster)
    backward = float(passes.backward.sum())
    computed = (1 - used_seconds / backward) * passes.backward[::-1]
    joined = any(row.layer.startswith(BUCKET_SCOPE) for row in own)
    full = joined * case.plan.reduce.bucket_mib * 2**20 * case.plan.mesh.fsdp
    ready = bucket_bytes(passes.parameter_bytes[::-1], full) / max(
        1.0, passes.parameter_bytes.sum()
    )
    yield CollectiveOverlap(
        compute_pass="backward",
        collective_seconds=moved,
        compute_seconds=float(computed.sum()),
        concurrent_seconds=float(
            concurrent_time(computed, sum(moved.values()) * ready)
        ),
        overlap_fraction=cluster.overlap.value,
    )


def bucket_bytes(sizes: FloatArray, bucket_size: float) -> FloatArray:
    """Return the bytes that are summed when each layer is done.

    >>> bucket_bytes(np.array([3.0, 1.0, 2.0, 1.0]), 4.0).tolist()
    [0.0, 4.0, 0.0, 3.0]
    """
    found, held = np.zeros_like(sizes), 0.0
    for place, size in enumerate(sizes):
        held += size
        if held >= bucket_size or place == len(sizes) - 1:
            found[place], held = held, 0.0
    return found


def _is_gradient_reduction(row: PlannedCollective) -> bool:
    shared = row.what == "gradients" and row.axes == (FSDP_AXIS,)
    return shared or row.layer.startswith(_ALL_REDUCE_SCOPE)


def _with_array_count(row: PlannedCollective, arrays: int) -> PlannedCollective:
    """Return so many of a row's arrays."""
    return replace(row, arrays=arrays, payload=row.payload // row.arrays * arrays)


def _seconds_by_term(
    ledger: Ledger,
    rows: Iterable[PlannedCollective],
    case: StepDescription,
    cluster: Cluster,
) -> dict[str, float]:
    some = replace(ledger, rows=tuple(rows), outer_syncs=())
    return traffic_seconds(some, cluster, case.plan.placed)
