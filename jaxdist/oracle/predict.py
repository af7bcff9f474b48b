"""The prediction of a training step: seconds and bytes by term, and their origin."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.cluster.layer_timings import UPDATE
from jaxdist.core.intervals import Interval
from jaxdist.core.plan_resize import check_device_count
from jaxdist.oracle.collective_times import traffic_seconds
from jaxdist.oracle.memory import tightest_memory
from jaxdist.oracle.offload import host_activation_bytes, host_copy_seconds
from jaxdist.oracle.overlap import collective_overlaps
from jaxdist.oracle.rank_devices import rank_devices, rank_groups
from jaxdist.oracle.schedule_times import core_contention, schedule_time
from jaxdist.oracle.stage_times import (
    other_traffic,
    send_ledger,
    stage_layer_traffic,
    stage_times,
    superstep_skew,
)
from jaxdist.oracle.step_description import FROZEN_TERM, StepDescription
from jaxdist.oracle.step_errors import is_timed, order_tolerance, step_interval
from jaxdist.partition.ledger import Ledger

UPDATE_PASSES: Final = 5
"""Passes of an update over the parameters: it reads value, gradient and momentum, and
writes value and momentum."""
MEMORY_MARGIN: Final = 0.35
"""Share by which temporaries may exceed the trace; the most ever seen is 0.29."""
_EXACT_MEMORY_TERMS: Final = (
    *("parameters", FROZEN_TERM, "statistics", "optimizer", "averages"),
    *("residuals", "replicas", "gathered", "gradients", "batch"),
)
"""Terms of memory that are counted and not estimated."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted time and memory of a training step on a cluster."""

    plan: str
    """Title of the layout."""
    cluster: str
    """Name of the machine."""
    terms_s: dict[str, float]
    """Seconds by term that add up to the step; of collectives the exposed ones."""
    memory_by_term: dict[str, int]
    """Bytes that the device with least to spare needs, by term."""
    memory_capacity: int
    """Bytes of that device's memory."""
    batch: int
    """Samples of a step."""
    interval: Interval
    """The 90 % interval, as factors of the step."""
    order_ratio: float = math.inf
    """Ratio of steps from which two plans of one network and machine are in the
    predicted order, nine in ten times."""
    provenance: dict[str, str]
    """The origin of each number of the cluster, by its path."""
    overlapped_s: dict[str, float] = field(default_factory=dict)
    """Seconds of collectives that overlap with compute, by term. They are part of
    neither `terms_s` nor the step."""
    busiest_device: int = 0
    """The rank of the pipe axis that the others wait for."""
    host_bytes: int = 0
    """Bytes of activations that a device has in the host's memory."""
    host_capacity: int | None = None
    """Bytes of the host's memory for each of its devices; None where not known."""
    ideal_s: float | None = None
    """Seconds in which the devices at their peak do the FLOPs of the network; None
    where their peaks differ."""
    rank_groups: tuple[tuple[str, ...], ...] = ()
    """Host groups of each rank of the pipe axis; none where all hosts are alike."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.terms_s.values())

    @property
    def interval_s(self) -> tuple[float, float]:
        """The 90 % interval of the step, seconds."""
        return self.step_s * self.interval.low, self.step_s * self.interval.high

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation (MFU); None where peaks of devices differ."""
        return None if self.ideal_s is None else self.ideal_s / self.step_s

    def is_slower_than(self, other: "Prediction", ratio: float | None = None) -> bool:
        """Return whether this step is longer than another one, nine in ten times.

        Args:
            other: prediction of another plan of the network on the machine.
            ratio: this one over the other in what is compared; by default seconds.
        """
        if ratio is None:
            ratio = self.step_s / other.step_s
        # What both are off by cancels in their order, so either proof is enough.
        apart = ratio * self.interval.low > other.interval.high
        return apart or ratio > max(self.order_ratio, other.order_ratio)

    @property
    def memory_bytes(self) -> int:
        """Bytes that a device needs."""
        return sum(self.memory_by_term.values())

    @property
    def traced_bytes_with_margin(self) -> int:
        """Bytes of a device with a margin for the error of traced temporaries."""
        return self.memory_bytes + round(
            MEMORY_MARGIN * self.memory_by_term.get("temporaries", 0)
        )

    @property
    def untraced_bytes_with_margin(self) -> int:
        """Bytes of a device with the same margin for all inexact terms."""
        # Counted terms need no margin: only activations and buffers are estimates.
        exact = sum(self.memory_by_term.get(term, 0) for term in _EXACT_MEMORY_TERMS)
        return self.memory_bytes + round(MEMORY_MARGIN * (self.memory_bytes - exact))

    @property
    def fits(self) -> bool:
        """Whether a device has enough memory for the step and the margin."""
        traced = "temporaries" in self.memory_by_term
        needed = (
            self.traced_bytes_with_margin if traced else self.untraced_bytes_with_margin
        )
        return needed <= self.memory_capacity and self.host_excess_bytes <= 0

    @property
    def host_excess_bytes(self) -> int:
        """Bytes by which activations exceed the host's memory."""
        limit = self.host_capacity
        return 0 if limit is None else max(0, self.host_bytes - limit)

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as plain values, for JSON."""
        groups = [list(names) for names in self.rank_groups]
        return {
            "plan": self.plan,
            "cluster": self.cluster,
            "step_s": self.step_s,
            "interval_s": list(self.interval_s),
            "interval_basis": self.interval.basis,
            "samples_per_s": self.batch / self.step_s,
            "mfu": self.mfu,
            "terms_s": self.terms_s,
            "hidden_s": self.overlapped_s,
            "memory_bytes": self.memory_bytes,
            "memory_by_term": self.memory_by_term,
            "fits": self.fits,
            "room_bytes": self.memory_capacity,
            "host_bytes": self.host_bytes,
            "origins": self.provenance,
            **({"rank_host_groups": groups} if groups else {}),
        }


def predict(case: StepDescription, cluster: Cluster) -> Prediction:
    """Predict a training step.

    Args:
        case: network, layout and traffic.
        cluster: machines; every number of it says where it is from.

    Raises:
        BadInput: more devices than the cluster has, or no speed for the dtype.
    """
    check_device_count(case.plan, cluster)
    placed = case.plan.placed
    kinds = rank_devices(cluster, placed)
    # The schedule is replayed with the seconds of each stage; without stages it is one
    # stage without a bubble.
    skew = superstep_skew(case.plan, cluster)
    stages, crowd = stage_times(case, cluster), core_contention(case, cluster)
    replay = schedule_time(case.plan, case.microbatches, stages, crowd, skew)
    (slowest, around), (busiest, inside) = slowest_traffic(
        case, cluster, replay.busiest_device
    )
    # A pass through a stage has the communication of its layers in it, which is a term
    # of its own among those of collectives.
    talk = traffic_seconds(inside, cluster, placed, busiest)
    terms = {
        "compute": replay.busy_seconds - sum(talk.values()),
        "bubble": replay.bubble_seconds,
    }
    moved = traffic_seconds(around, cluster, placed, slowest)
    terms |= moved
    terms |= {name: moved.get(name, 0.0) + took for name, took in talk.items()}
    behind: Counter[str] = Counter()
    for one in collective_overlaps(case, cluster, around):
        behind.update(one.overlapped_by_term)
    # Kernels of collectives take processors and memory from those beside them.
    disturbed = max(kind.interference.value for kind in kinds)
    terms["compute"] += disturbed * sum(behind.values())
    # Rounding may make the overlap exceed the term by a little.
    terms |= {term: max(0.0, terms[term] - s) for term, s in behind.items()}
    terms["offload"], hidden = host_copy_seconds(case, cluster)
    if hidden:
        behind.update({"offload": hidden})
    terms["packing"] = max(
        compression_seconds(*own) for own in rank_compressions(case, cluster)
    )
    # All parameters are updated once a step, or after every round of microbatches where
    # stages update asynchronously.
    updates = max(own.updates for own in case.work_counts)
    terms["update"] = updates * max(update_seconds(case, kind) for kind in kinds)
    # Hosts prepare the next step's samples while the devices work on this one, so a
    # step pays what that takes longer than all else.
    terms["input"] = 0.0
    if cluster.input_rate is not None:
        # The last host may have some of its devices idle: it prepares all the same.
        hosts = -(-case.plan.mesh.devices // cluster.levels[0].size)
        prepared = case.batch_bytes / hosts / cluster.input_rate.value
        terms["input"] = max(0.0, prepared - sum(terms.values()))

    # Tables of many numbers have one origin each.
    provenance = {path: number.origin for path, number in cluster.numbers()}
    own = {f"host_groups.{x.name}.device": x.device for x in cluster.host_groups}
    for path, device in {"device": cluster.device, **own}.items():
        if device is None:
            continue
        provenance[f"{path}.efficiency"] = device.efficiency.origin
        for table in ("kernels", "layers", "blocks"):
            if (timed := getattr(device, table)) is not None:
                provenance[f"{path}.{table}"] = timed.origin
    # Numbers that decide are all of the machine itself, or the interval is that of
    # machines that are described.
    origins = []
    if not any(layer.seconds_forward for layer in case.profile.layers):
        origins += [kind.peak(case.dtype).origin for kind in kinds]
        origins += [kind.efficiency.origin for kind in kinds]
    if case.plan.mesh.devices > 1:
        origins += [level.bandwidth.origin for level in cluster.levels]
    timed = is_timed(origins)
    memory, capacity = tightest_memory(case, cluster)
    peak, *others = {kind.peak(case.dtype).value for kind in kinds}
    ideal = case.profile.ideal_seconds(case.plan.mesh.devices, peak)
    groups = [rank_groups(cluster, placed, rank) for rank in range(len(case.ledgers))]
    names = tuple(tuple(group.name for group in own) for own in groups)
    return Prediction(
        plan=case.plan.title,
        cluster=cluster.name,
        terms_s={term: s for term, s in terms.items() if s or term in behind},
        memory_by_term=memory,
        memory_capacity=capacity,
        batch=case.profile.batch,
        interval=step_interval(cluster, case.plan, timed=timed),
        order_ratio=order_tolerance(timed),
        provenance=provenance,
        overlapped_s=dict(behind),
        busiest_device=replay.busiest_device,
        host_bytes=host_activation_bytes(case, cluster.device),
        host_capacity=round(cluster.host_memory.value / cluster.levels[0].size)
        if cluster.host_memory
        else None,
        ideal_s=None if others else ideal,
        rank_groups=names if cluster.host_groups else (),
    )


def least_memory_bandwidth(kinds: Iterable[Device]) -> float:
    """Return the least memory bandwidth of some kinds of devices, bytes a second."""
    return min(kind.memory_bandwidth.value for kind in kinds)


def update_seconds(case: StepDescription, device: Device) -> float:
    """Return the seconds of one update of the parameters on a device.

    Args:
        case: network, layout and traffic.
        device: its memory, by which an update is bound, or timed updates; and its peak,
            for an optimizer that multiplies matrices.
    """
    products = case.ledgers[0].update_flops / device.peak(case.dtype).value
    parameters = case.state_bytes.get("parameters", case.profile.parameter_bytes)
    if device.layers is not None:
        state = parameters + case.state_bytes.get("optimizer", 0)
        peak = device.peak(case.dtype).value
        timed = device.layers.seconds(UPDATE, state, (0.0, 0.0), peak)
        if timed is not None:
            return timed[0] + products
    return products + UPDATE_PASSES * parameters / device.memory_bandwidth.value


def slowest_traffic(
    case: StepDescription, cluster: Cluster, busiest_device: int
) -> tuple[tuple[int, Ledger], tuple[int, Ledger]]:
    """Return the traffic of a step: of each part where it takes longest.

    Args:
        case: network, layout and traffic.
        cluster: machines.
        busiest_device: the rank of the pipe axis that the others wait for.

    Returns:
        All traffic but that inside of layers, of the rank where that takes longest, and
        the traffic inside of the busiest rank's layers; each with its rank.
    """
    placed = case.plan.placed
    # Of equal ranks the first stands for all, but on links of its own.
    ranks: Iterable[int] = range(len(case.ledgers))
    if case.equal_ranks and not cluster.has_uneven_links:
        ranks = dict.fromkeys(case.equal_ranks)
    found = [
        (rank, send_ledger(other_traffic(case, rank), case.plan, rank, cluster))
        for rank in ranks
    ]
    # Ranks exchange different rows, and all of them wait for the slowest.
    around = max(
        found,
        key=lambda own: sum(traffic_seconds(own[1], cluster, placed, own[0]).values()),
    )
    return around, (busiest_device, stage_layer_traffic(case, busiest_device))


def rank_compressions(
    case: StepDescription, cluster: Cluster
) -> Iterator[tuple[Ledger, Device]]:
    """Yield the traffic of each rank with each kind of its devices."""
    for rank, ledger in enumerate(case.ledgers):
        for kind in rank_devices(cluster, case.plan.placed, rank):
            yield ledger, kind


def compression_seconds(ledger: Ledger, device: Device) -> float:
    """Return the seconds of compressing and restoring, where that was timed."""
    # Compressors are timed by the number of elements, each way of compressing by
    # itself.
    known, rows = device.packing, ledger.rows
    return sum(row.packed * known[row.what].value for row in rows if row.what in known)
