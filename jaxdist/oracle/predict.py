"""Predicting: the seconds and the bytes of a step by term, and where they are from."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.oracle.collective_times import traffic_seconds
from jaxdist.oracle.memory import device_memory
from jaxdist.oracle.overlap import collective_overlaps, total_overlap
from jaxdist.oracle.schedule_times import PipelineTime, schedule_time
from jaxdist.oracle.stage_times import other_traffic, stage_layer_traffic, stage_times
from jaxdist.oracle.stage_transfers import send_ledger, superstep_skew
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.plan_schedule import updates_per_step

UPDATE_PASSES: Final = 5
"""Passes of an update over the parameters: value, slope and momentum are read, value
and momentum written."""
_ERROR_BY_PROVENANCE: Final = {"fitted": 0.2}
"""Half the width of the interval, as a share, by the origin of what decides."""
_DEFAULT_ERROR: Final = 0.4
"""The same where no steps of a machine were seen: 18 of 20 executed plans lay in it."""
MEMORY_MARGIN: Final = 0.35
"""Share by which temporaries may be more than traced: the most seen is 0.29."""


_EXACT_MEMORY_TERMS: Final = (
    *("parameters", "statistics", "optimizer", "averages"),
    *("residuals", "replicas", "gathered", "gradients", "batch"),
)
"""Terms of memory that are counted and not estimated."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step takes on a cluster."""

    plan: str
    """Title of the layout."""
    cluster: str
    """Name of the machine."""
    terms_s: dict[str, float]
    """Seconds by term, of collectives those that nothing hides; their sum is the
    step's."""
    memory_by_term: dict[str, int]
    """Bytes of a device by term."""
    memory_capacity: int
    """Bytes that a device has."""
    batch: int
    """Samples of a step."""
    relative_error: float
    """Share by which the step may be shorter or longer, nine times in ten."""
    provenance: dict[str, str]
    """Where each number is from that was used, by its path in the cluster."""
    overlapped_s: dict[str, float] = field(default_factory=dict)
    """Seconds of collectives behind computing, by the names of their terms: what these
    have is no part of them, nor of the step."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.terms_s.values())

    @property
    def interval_s(self) -> tuple[float, float]:
        """Seconds between which nine of ten steps should be."""
        return self.step_s * (1 - self.relative_error), self.step_s * (
            1 + self.relative_error
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes of a device."""
        return sum(self.memory_by_term.values())

    @property
    def traced_bytes_with_margin(self) -> int:
        """Bytes of a device with a margin for what the prediction may lack."""
        return self.memory_bytes + round(
            MEMORY_MARGIN * self.memory_by_term.get("temporaries", 0)
        )

    @property
    def untraced_bytes_with_margin(self) -> int:
        """Bytes of a device with the same margin for all that is not exact."""
        exact = sum(self.memory_by_term.get(term, 0) for term in _EXACT_MEMORY_TERMS)
        return self.memory_bytes + round(MEMORY_MARGIN * (self.memory_bytes - exact))

    @property
    def fits(self) -> bool:
        """Whether a device has room for it, with the margin."""
        traced = "temporaries" in self.memory_by_term
        return (
            self.traced_bytes_with_margin if traced else self.untraced_bytes_with_margin
        ) <= self.memory_capacity

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "plan": self.plan,
            "cluster": self.cluster,
            "step_s": self.step_s,
            "interval_s": list(self.interval_s),
            "samples_per_s": self.batch / self.step_s,
            "terms_s": self.terms_s,
            "hidden_s": self.overlapped_s,
            "memory_bytes": self.memory_bytes,
            "memory_by_term": self.memory_by_term,
            "fits": self.fits,
            "room_bytes": self.memory_capacity,
            "origins": self.provenance,
        }


def predict(case: StepDescription, cluster: Cluster) -> Prediction:
    """Predict the step of a case.

    Args:
        case: network, layout and traffic.
        cluster: machines; every number of it says where it is from.

    Raises:
        BadInput: more devices than the cluster has, or no speed for the dtype.
    """
    check_device_count(case.plan, cluster)
    replay = pipeline_time(case, cluster)
    ledger = slowest_ledger(case, cluster, replay.busiest_device)
    terms = compute_terms(case, cluster, replay)
    terms |= traffic_seconds(ledger, cluster, case.plan.placed)
    behind = total_overlap(collective_overlaps(case, cluster, ledger))
    terms |= {term: max(0.0, terms[term] - s) for term, s in behind.items()}
    terms["packing"] = max(
        compression_seconds(ledger, cluster) for ledger in case.ledgers
    )
    terms["update"] = _update_seconds(case, cluster)
    late = _input_seconds(case, cluster) - sum(terms.values())
    terms["input"] = max(0.0, late)
    return Prediction(
        plan=case.plan.title,
        cluster=cluster.name,
        terms_s={term: s for term, s in terms.items() if s or term in behind},
        memory_by_term=device_memory(case, cluster.device),
        memory_capacity=round(cluster.device.memory.value),
        batch=case.profile.batch,
        relative_error=_relative_error(case, cluster),
        provenance=dict(_provenance(cluster)),
        overlapped_s=behind,
    )


def check_device_count(plan: Plan, cluster: Cluster) -> None:
    """Refuse a plan that a cluster has too few devices for.

    Raises:
        BadInput: with the numbers.
    """
    if plan.mesh.devices > cluster.devices:
        raise BadInput(
            "the plan needs more devices than the cluster has",
            rule="the product of plan.mesh is at most the devices of the cluster",
            values=f"{plan.title} has {plan.mesh.devices:,}, "
            f"{cluster.name} {cluster.devices:,}",
            remedy="a smaller plan.mesh, or a larger cluster",
        )


def pipeline_time(case: StepDescription, cluster: Cluster) -> PipelineTime:
    """Return how long devices work in a step, and wait for other stages."""
    crowd, skew = cluster.device.crowd.value, superstep_skew(case.plan, cluster)
    return schedule_time(
        case.plan, case.microbatches, stage_times(case, cluster), crowd, skew
    )


def compute_terms(
    case: StepDescription, cluster: Cluster, pipeline_time: PipelineTime
) -> dict[str, float]:
    """Return the seconds of computing and of waiting for other stages."""
    said = traffic_seconds(
        stage_layer_traffic(case, pipeline_time.busiest_device),
        cluster,
        case.plan.placed,
    )
    return {
        "compute": pipeline_time.busy_seconds - sum(said.values()),
        "bubble": pipeline_time.bubble_seconds,
    }


def slowest_ledger(
    case: StepDescription, cluster: Cluster, busiest_device: int
) -> Ledger:
    """Return what a step's collectives move where they take longest.

    Args:
        case: network, layout and traffic.
        cluster: machines.
        busiest_device: the device along the pipe axis for whose layers the others wait.

    Returns:
        What those layers move, and all else of the device where that takes longest.
    """
    found = [
        send_ledger(other_traffic(case, device), case.plan, device, cluster)
        for device in range(len(case.ledgers))
    ]
    placed, inside = case.plan.placed, stage_layer_traffic(case, busiest_device).rows
    around = max(
        found, key=lambda one: sum(traffic_seconds(one, cluster, placed).values())
    )
    return replace(around, rows=(*around.rows, *inside))


def compression_seconds(ledger: Ledger, cluster: Cluster) -> float:
    """Return the seconds in which a device packs and unpacks, where that was timed."""
    known, rows = cluster.device.packing, ledger.rows
    return sum(row.packed * known[row.what].value for row in rows if row.what in known)


def _update_seconds(case: StepDescription, cluster: Cluster) -> float:
    """Return the seconds of moving the parameters: they pass through memory.

    Once a step, but for stages that move theirs after every round of microbatches.
    """
    passed = UPDATE_PASSES * case.state_bytes.get(
        "parameters", case.profile.parameter_bytes
    )
    times = updates_per_step(case.plan, case.microbatches)
    return times * passed / cluster.device.memory_bandwidth.value


def _input_seconds(case: StepDescription, cluster: Cluster) -> float:
    """Return the seconds in which hosts make the samples of a step ready."""
    if cluster.input_rate is None:
        return 0.0
    per_host = cluster.levels[0].size
    hosts = max(1, case.plan.mesh.devices // per_host)
    return case.batch_bytes / hosts / cluster.input_rate.value


def _provenance(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield where the numbers of a cluster are from, of tables once for all of one."""
    yield from ((path, number.origin) for path, number in cluster.numbers())
    yield "device.efficiency", cluster.device.efficiency.origin
    if cluster.device.kernels is not None:
        yield "device.kernels", cluster.device.kernels.origin
    if cluster.device.blocks is not None:
        yield "device.blocks", cluster.device.blocks.origin


def _relative_error(case: StepDescription, cluster: Cluster) -> float:
    """Return half the width of the interval: as sure as the least sure that decides."""
    measured = any(layer.seconds_forward for layer in case.profile.layers)
    deciding: list[SourcedNumber] = (
        [] if measured else [cluster.device.peak(case.dtype)]
    )
    curve = cluster.device.efficiency
    origins = [number.origin for number in deciding]
    origins += [] if measured else [curve.origin]
    if case.plan.mesh.devices > 1:
        origins += [level.bandwidth.origin for level in cluster.levels]
    kinds = [origin.partition(":")[0] for origin in origins]
    return max(
        (_ERROR_BY_PROVENANCE.get(kind, _DEFAULT_ERROR) for kind in kinds),
        default=_DEFAULT_ERROR,
    )
