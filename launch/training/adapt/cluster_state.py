"""Machine: on what a run is said to be, and the plan that it has there by now."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.launch.config.plan_file import plan_to_overrides
from jaxdist.launch.config.resolve import ResolvedConfig, resolve_config
from jaxdist.launch.devices.prepare import PreparedDevices, prepare_devices
from jaxdist.launch.distributed.environment import planned_process_count
from jaxdist.launch.run_folder.folder import run_folder
from jaxdist.launch.training.adapt.saved_plan import SavedPlan, read_saved_plan
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import check_device_count


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """Where a run is."""

    name: str
    """The cluster as it was typed."""
    given: Cluster
    """The same, read."""
    adapts: bool
    """Whether the run may change its plan."""
    earlier: SavedPlan | None
    """What an earlier sitting has changed the plan to."""
    fewer: str = ""
    """That not all processes are here, where the plan is not for those that are."""

    @property
    def now(self) -> Cluster:
        """The cluster with what an earlier sitting has measured."""
        return self.earlier.since if self.earlier else self.given

    @property
    def written(self) -> int | None:
        """Processes that the plan is written for; None where the launcher says it."""
        return self.earlier.processes if self.earlier else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What to tell the user."""
        return (self.earlier.text,) if self.earlier else ()


def load_cluster_state(
    name: str | None, resolved: ResolvedConfig, num_processes: int, *, is_adaptive: bool
) -> ClusterState | None:
    """Return where a run is; None where nobody has said it.

    Args:
        name: of a cluster, or of its file.
        resolved: what runs.
        num_processes: how many are here.
        is_adaptive: whether the run may change its plan.

    Raises:
        BadInput: no such cluster, or none to adapt to.
    """
    if name is None:
        _require_cluster(is_adaptive)
        return None
    given, folder = load_cluster(name), run_folder(resolved.config)
    earlier = (
        read_saved_plan(folder.saved_plan, given, num_processes)
        if is_adaptive
        else None
    )
    written = planned_process_count(os.environ, num_processes)
    less = f"{num_processes} of {written} processes are here"
    fewer = less if num_processes < written and earlier is None else ""
    return ClusterState(
        name=name, given=given, adapts=is_adaptive, earlier=earlier, fewer=fewer
    )


def apply_saved_plan(
    resolved: ResolvedConfig,
    overrides: Sequence[str],
    cluster_state: ClusterState | None,
) -> ResolvedConfig:
    """Return the configuration with the plan that the run has by now.

    Args:
        resolved: what was asked for.
        overrides: the overrides that it was asked for with.
        cluster_state: where it runs.
    """
    if cluster_state is None or cluster_state.earlier is None:
        return resolved
    return resolve_config(
        resolved.experiment, [*overrides, *plan_to_overrides(cluster_state.earlier.now)]
    )


def prepare_cluster_devices(
    cluster_state: ClusterState | None, resolved: ResolvedConfig
) -> PreparedDevices:
    """Prepare the devices for the plan that a run has by now.

    Raises:
        BadInput: an explicit plan that does not fit.
    """
    plan, explicit = resolved.config.plan, resolved.plan_is_explicit
    if cluster_state is None:
        return prepare_devices(plan, explicit=explicit)
    found = prepare_devices(
        plan, explicit=explicit, planned_processes=cluster_state.written
    )
    check_device_count(found.plan, cluster_state.given)
    return replace(found, adjustments=(*found.adjustments, *cluster_state.notes))


def _require_cluster(is_adaptive: bool) -> None:
    if is_adaptive:
        raise BadInput(
            "nothing says on which machine it runs",
            rule="--adapt plans again for a cluster with the numbers of now",
            values="--adapt, no --cluster",
            remedy=("--cluster testbed --adapt", "jaxdist calibrate measures yours"),
        )
