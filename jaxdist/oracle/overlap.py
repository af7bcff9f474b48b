"""Overlap: collectives that run while a device computes what does not need them.

    hidden = o (A + B - max over k of (a_1 + ... + a_k + b_k + ... + b_n))

Of layers in the order in which a pass comes to them, a and b are the seconds of what is
done first and of what needs it, A and B their sums. The maximum is the makespan of two
workers, one for each (Johnson 1954, two-machine flow shop). o is the cluster's
`overlap`: t = comp + sum (1 - o) comm, correction 2 to ParaDL (arXiv 2104.09075), for
what can overlap.

    gathers      parameters that fsdp shards, then the pass that reads them, forward
                 and, from the last layer to the first, backward; in each microbatch
    reductions   a layer's backward pass, then the reduction of its gradients, beside
                 what gathers leave of that pass; buckets are reduced when they are full
    rings        keys and values of the next device, beside the attention to those of
                 the one before: of n turns the n - 1 that others follow

A layer's part of what moves is that of its parameter bytes. What comes after a loop has
no pass to overlap with: reductions of several microbatches, all of a pipeline,
parameters that are gathered after the update (`plan.zero=1`). Communication inside of
layers is needed at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jaxdist.core.cluster import Cluster
from jaxdist.oracle.collective_times import traffic_seconds
from jaxdist.oracle.compute_times import stage_cost_model
from jaxdist.oracle.flow_shop import FloatArray, concurrent_time
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.context_parallel import ATTENTION_GRADIENTS, ATTENTION_TERM
from jaxdist.partition.gradient_buckets import BUCKET_SCOPE
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.param_sharding import FSDP_AXIS

_ATTENTION_TERMS: Final = (ATTENTION_TERM, ATTENTION_GRADIENTS)
_PERMUTE_KIND: Final = "collective-permute"
_FSDP: Final = (FSDP_AXIS,)
_ALL_REDUCE_SCOPE: Final = "reduce_gradients"
"""Prefix of the named scopes that reduce whole gradients."""


@dataclass(frozen=True, kw_only=True)
class CollectiveOverlap:
    """Collectives that run beside one pass of a step."""

    compute_pass: str
    """`forward`, `backward`, or `attention`, of both."""
    collective_seconds: Mapping[str, float]
    """Seconds of the collectives by term, as if nothing overlapped."""
    compute_seconds: float
    """Seconds of the pass that no other collective overlaps with."""
    concurrent_seconds: float
    """Seconds in which both can run."""
    overlap_fraction: float
    """Share of these in which both do run."""

    @property
    def overlapped_seconds(self) -> float:
        """Seconds that are hidden."""
        return self.overlap_fraction * self.concurrent_seconds

    @property
    def overlapped_by_term(self) -> dict[str, float]:
        """The same by term, as the seconds of each."""
        # Terms share the overlap in proportion, since collectives of several terms are
        # interleaved.
        whole = sum(self.collective_seconds.values())
        return {
            term: self.overlapped_seconds * s / whole
            for term, s in self.collective_seconds.items()
        }


def collective_overlaps(
    case: StepDescription, cluster: Cluster, ledger: Ledger
) -> tuple[CollectiveOverlap, ...]:
    """Return the collectives that a step overlaps with its passes.

    Args:
        case: network, layout and traffic.
        cluster: machines.
        ledger: what the step's collectives move.
    """
    overlap, plan, micro = cluster.overlap.value, case.plan, case.microbatches
    # Stages reduce behind their last superstep, when no compute is left.
    if not overlap or plan.stages > 1:
        return ()
    # One device stands for all: layers without stages are the same on each.
    late = micro * (1 + cluster.jitter.value)
    layers = case.compute_layers(0)
    model = stage_cost_model(case, cluster, 0)
    spent = [model.microbatch_time(layer) for layer in layers]
    forward = late * np.array([one.forward for one in spent])
    backward = late * np.array([one.backward for one in spent])
    sizes = np.array([float(layer.parameter_bytes) for layer in layers])
    total, found = max(1.0, sizes.sum()), list[CollectiveOverlap]()
    # Syncs of replicas lie between steps, beside no pass.
    bare = replace(ledger, outer_syncs=())

    gathers = [r for r in ledger.rows if r.what == "parameters" and r.axes == _FSDP]
    if plan.zero == 3:
        # Each microbatch gathers an array for its forward pass; what a row has more are
        # gathers for the backward pass, which comes to the layers in reverse.
        for name, again, computed, parts in (
            ("forward", False, forward, sizes / total),
            ("backward", True, backward[::-1], (sizes / total)[::-1]),
        ):
            counts = [(r, r.arrays - micro if again else micro) for r in gathers]
            rows = [
                replace(row, arrays=count, payload=row.payload // row.arrays * count)
                for row, count in counts
            ]
            moved = traffic_seconds(
                replace(bare, rows=tuple(rows)), cluster, plan.placed
            )
            # A layer's pass cannot begin before its parameters are there.
            both = concurrent_time(sum(moved.values()) * parts, computed)
            found.append(
                CollectiveOverlap(
                    compute_pass=name,
                    collective_seconds=moved,
                    compute_seconds=float(computed.sum()),
                    concurrent_seconds=float(both),
                    overlap_fraction=overlap,
                )
            )

    rings = [
        row
        for row in ledger.rows
        if row.what in _ATTENTION_TERMS and row.kind == _PERMUTE_KIND
    ]
    if rings:
        # A row is of the layer of keys; the attention that computes is its parent
        # module.
        modules = {row.layer.rpartition(".")[0] for row in rings}
        inside = np.array([layer.name in modules for layer in layers])
        beside = float((forward + backward)[inside].sum())
        moved = traffic_seconds(replace(bare, rows=tuple(rings)), cluster, plan.placed)
        turns = 1 - 1 / plan.mesh.context
        found.append(
            CollectiveOverlap(
                compute_pass="attention",
                collective_seconds=moved,
                compute_seconds=beside,
                concurrent_seconds=min(sum(moved.values()), turns * beside),
                overlap_fraction=overlap,
            )
        )

    if micro == 1:
        rows = [
            row
            for row in ledger.rows
            if (row.what == "gradients" and row.axes == _FSDP)
            or row.layer.startswith(_ALL_REDUCE_SCOPE)
        ]
        moved = traffic_seconds(replace(bare, rows=tuple(rows)), cluster, plan.placed)
        # The links are busy with gathers for a part of the backward pass.
        gone = (x.overlapped_seconds for x in found if x.compute_pass == "backward")
        computed = (1 - sum(gone) / float(backward.sum())) * backward[::-1]
        joined = any(row.layer.startswith(BUCKET_SCOPE) for row in rows)
        # Bucket sizes are of what one device reduces, and fsdp has scattered before.
        full = joined * plan.reduce.bucket_mib * 2**20 * plan.mesh.fsdp
        ready = bucket_bytes(sizes[::-1], full) / total
        # A gradient cannot be reduced before its layer's backward pass is done.
        both = concurrent_time(computed, sum(moved.values()) * ready)
        found.append(
            CollectiveOverlap(
                compute_pass="backward",
                collective_seconds=moved,
                compute_seconds=float(computed.sum()),
                concurrent_seconds=float(both),
                overlap_fraction=overlap,
            )
        )
    return tuple(one for one in found if one.concurrent_seconds > 0)


def bucket_bytes(sizes: FloatArray, bucket_size: float) -> FloatArray:
    """Return the bytes that can be reduced when the backward pass of a layer is done.

    >>> bucket_bytes(np.array([3.0, 1.0, 2.0, 1.0]), 4.0).tolist()
    [0.0, 4.0, 0.0, 3.0]
    """
    found, held = np.zeros_like(sizes), 0.0
    for place, size in enumerate(sizes):
        held += size
        if held >= bucket_size or place == len(sizes) - 1:
            found[place], held = held, 0.0
    return found
