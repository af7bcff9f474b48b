"""Setup of a job: what a command asks for becomes one job, with nothing left to decide.

words       an experiment, overrides, a plan file, a cluster   one configuration
devices     those that are here, of the processes that are     a plan that fits them
record      what the run has chosen when it began              the same choice again
samples     opened, the same as those of the run               a network that fits them
links       measured, for plan.reduce.algorithm=auto           one all-reduce algorithm

The cluster that a run is said to be on, and the plan that it has adapted to there.

A plan that was adapted lies in the folder of the run, so whatever starts the run again
finds it there.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.plan import Plan
from jaxdist.core.plan_resize import check_device_count
from jaxdist.core.validation import json_text
from jaxdist.launch.config.plan_file import check_plan_target, plan_to_overrides
from jaxdist.launch.config.resolve import ResolvedConfig, override_resolved
from jaxdist.launch.config.tree import replace_values
from jaxdist.launch.devices.prepare import prepare_devices
from jaxdist.launch.distributed.environment import planned_process_count
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.folder import (
    check_writable,
    read_json_object,
    run_folder,
)
from jaxdist.launch.run_folder.lockfile import (
    RunOptions,
    check_same_samples,
    fingerprint_samples,
)
from jaxdist.launch.training.job.request import (
    JobRequest,
    ResolvedRequest,
    resolve_request,
    with_algorithm,
)
from jaxdist.launch.training.job.task_parts import NO_PARTS
from jaxdist.launch.training.preflight import check_device_counts, check_settings
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from jaxdist.launch.training.job.job import Job


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """What a run has changed its plan to."""

    # Plan and cluster are kept as JSON, which is all that their file needs.
    asked: str
    """Digest of the cluster that was given: for another one the plan does not hold."""
    processes: int
    """Number of processes that it is for."""
    step: int
    """Steps that were done before."""
    why: str
    """What had changed."""
    plan: Mapping[str, Any]
    """The plan, as its JSON has it."""
    cluster: Mapping[str, Any]
    """The cluster since then, as its JSON has it."""

    @property
    def now(self) -> Plan:
        """The plan."""
        return Plan.from_tree(self.plan)

    @property
    def since(self) -> Cluster:
        """The cluster."""
        return Cluster.from_tree(self.cluster)

    @property
    def text(self) -> str:
        """The same for a person."""
        return f"plan {self.now.label}, adapted after step {self.step:,}: {self.why}"


def digest_cluster(cluster: Cluster) -> str:
    """Return a digest of a cluster's numbers."""
    return hashlib.sha256(cluster.to_json().encode()).hexdigest()[:16]


def write_saved_plan(path: Path, saved_plan: SavedPlan) -> None:
    """Write the plan that the next attempt runs."""
    write_atomic(path, json_text(asdict(saved_plan), indent=2) + "\n")


def read_saved_plan(path: Path, cluster: Cluster, processes: int) -> SavedPlan | None:
    """Read the plan; None where it is missing, or for another cluster or number.

    Args:
        path: the file.
        cluster: the cluster that is given now.
        processes: how many there are now.
    """
    found = read_json_object(path)
    if found is None:
        return None
    # The digest is that of all numbers: a cluster file that was edited since makes the
    # plan void, for it was found with other numbers.
    with suppress(TypeError):  # fields of another version
        saved = SavedPlan(**found)
        if (saved.asked, saved.processes) == (digest_cluster(cluster), processes):
            return saved
    return None


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """The cluster that a run is on, as it was given and as it is now."""

    name: str
    """The cluster as it was typed."""
    given: Cluster
    """The same, read."""
    adapts: bool
    """Whether the run may change its plan."""
    earlier: SavedPlan | None
    """The plan that an earlier attempt has changed to."""
    fewer: str = ""
    """That not all processes are here, where the plan is not for those that are."""

    @property
    def now(self) -> Cluster:
        """The cluster with what an earlier attempt has measured."""
        return self.earlier.since if self.earlier else self.given


def load_cluster_state(
    name: str | None, resolved: ResolvedConfig, num_processes: int, *, is_adaptive: bool
) -> ClusterState | None:
    """Return the cluster that a run is on; None where none was named.

    Args:
        name: of a cluster, or of its file.
        resolved: what runs.
        num_processes: how many are here.
        is_adaptive: whether the run may change its plan.

    Raises:
        BadInput: no such cluster, or none to adapt to.
    """
    if name is None:
        if is_adaptive:
            raise BadInput(
                "nothing says on which machine it runs",
                rule="--adapt plans again for a cluster with the numbers of now",
                values="--adapt, no --cluster",
                remedy=(
                    "--cluster testbed --adapt",
                    "jaxdist calibrate measures yours",
                ),
            )
        return None
    given, path = load_cluster(name), run_folder(resolved.config).saved_plan
    if is_adaptive:
        given.only_device("jaxdist train --adapt")
    # Without --adapt the run has the plan that was asked for, whatever lies there.
    earlier = read_saved_plan(path, given, num_processes) if is_adaptive else None
    planned = planned_process_count(os.environ, num_processes)
    # A saved plan is for exactly the processes that are here.
    is_short = num_processes < planned and earlier is None
    fewer = f"{num_processes} of {planned} processes are here" if is_short else ""
    return ClusterState(
        name=name, given=given, adapts=is_adaptive, earlier=earlier, fewer=fewer
    )


def settle(
    request: JobRequest | ResolvedRequest | ResolvedConfig,
    group: ProcessGroup,
    *,
    for_training: bool = False,
) -> "Job":
    """Decide all that a job needs decided, in every process of a run at the same time.

    Call it before anything imports jax: devices are prepared in it. Nothing changes the
    plan afterwards; what has changed it here is listed in `Job.adjustments`.

    Args:
        request: what a command asks for, also resolved already, or the recorded
            configuration of a run, whose plan may then shrink to the devices that are
            here.
        group: the process among those of its run.
        for_training: hold the job against the folder of its run, which it begins or
            continues, and measure what was left open. Otherwise nothing is measured,
            and gradients of `plan.reduce.algorithm=auto` are summed exactly.

    Raises:
        BadInput: it cannot run as asked; nothing was written.
    """
    cluster: ClusterState | None = None
    asked: ResolvedRequest | None = None
    if isinstance(request, ResolvedConfig):
        resolved, explicit, parts = request, False, NO_PARTS
    else:
        with group.primary_first("settings"):
            if isinstance(request, JobRequest):
                request = resolve_request(request, for_training=for_training)
            asked = request
            resolved, cluster = _with_cluster(asked, group)
        explicit, parts = resolved.plan_is_explicit, asked.request.parts
    # Compared before devices are counted: jax waits there for all processes, and those
    # that disagree may never come.
    check_settings(group, resolved.config)

    saved = cluster.earlier if cluster else None
    devices = prepare_devices(
        resolved.config.plan,
        explicit=explicit,
        # A saved plan is for the processes that were there when it was found.
        planned_processes=saved.processes if saved else None,
    )
    if cluster is not None:
        check_device_count(devices.plan, cluster.given)
    check_device_counts(group, devices)

    # From here on jax is imported: it sees the devices that were just prepared.
    import jax

    from jaxdist.input.registry import open_data
    from jaxdist.launch.training.job.batch_spec import check_all_integers, feature_spec
    from jaxdist.launch.training.job.job import Adjustment, choose_all_reduce, make_job
    from jaxdist.launch.training.start_weights import open_weights
    from jaxdist.train.checkpoint.reader import list_steps

    # Before anything is traced: without the flag jax makes float32 of float64 in
    # silence.
    jax.config.update("jax_enable_x64", resolved.config.precision == "float64")
    changes = [Adjustment(key="plan.mesh", text=text) for text in devices.adjustments]
    changes += [Adjustment(key="plan", text=saved.text)] if saved else []
    is_open = for_training and resolved.config.plan.reduce.algorithm == "auto"
    algorithm = said = ""
    with group.primary_first("folder and samples"):
        if for_training:
            check_writable(run_folder(resolved.config).path)
        if asked is not None and asked.algorithm:
            algorithm, said = asked.algorithm, f"{asked.algorithm}, as this run began"
        # Process 0 goes first: it may download and prepare a data set that others then
        # find.
        sources = open_data(resolved.config.data, feature_spec(resolved.config))
        fingerprints = dict(fingerprint_samples(*sources)) if for_training else {}
        if asked is not None and asked.stored is not None:
            check_same_samples(asked.stored.sample_fingerprints, fingerprints)

    # Links are measured by all processes at once, so not inside `primary_first`.
    if is_open and not algorithm:
        # Laid out once without a choice: which sum is fastest depends on the bytes of
        # the gradients, which only a layout knows.
        undecided = make_job(resolved.config, devices.plan, sources[0], parts)
        algorithm, said = choose_all_reduce(undecided.layout)
        resolved = with_algorithm(resolved, algorithm)
    plan = devices.plan
    if algorithm:
        plan = replace_values(plan, {"reduce.algorithm": algorithm})
        changes.append(Adjustment(key="plan.reduce.algorithm", text=said))
    job = make_job(resolved.config, plan, sources[0], parts)
    for source in sources:
        check_all_integers(job.config, job.layout, source)
    with group.primary_first("weights"):
        # A run that is resumed has its own.
        weights = (
            open_weights(job.config, job.layout)
            if for_training and not list_steps(run_folder(job.config).checkpoints)
            else None
        )
    return replace(
        job,
        weights=weights,
        resolved=resolved,
        platform=devices.platform,
        adjustments=tuple(changes),
        warnings=devices.warnings,
        sources=sources,
        sample_fingerprints=fingerprints,
        cluster=cluster,
        command=asked.request.typed_command if asked else (),
        options=asked.options if asked else RunOptions(),
        changes=asked.changes if asked else (),
    )


def _with_cluster(
    asked: ResolvedRequest, group: ProcessGroup
) -> tuple[ResolvedConfig, ClusterState | None]:
    """Return the configuration of a request, with the plan that its run has by now."""
    resolved, options = asked.resolved, asked.options
    cluster = load_cluster_state(
        options.cluster, resolved, group.size, is_adaptive=options.adapts
    )
    if path := asked.request.plan_file:
        check_plan_target(path, resolved, cluster.given if cluster else None)
    if cluster is not None and cluster.earlier is not None:
        adapted = plan_to_overrides(cluster.earlier.now)
        resolved = override_resolved(resolved, adapted)
    return resolved, cluster
