"""The cluster that a run is said to be on, and the plan that it has adapted to there.

A plan that was adapted lies in the folder of the run, so whatever starts the run again
finds it there.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.distributed.environment import planned_process_count
from jaxdist.launch.run_folder.folder import run_folder, write_atomic
from jaxdist.launch.run_folder.jsonl import read_json_object
from jaxdist.meshes.clusters.load import load_cluster


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
        return Plan.from_json(json.dumps(self.plan))

    @property
    def since(self) -> Cluster:
        """The cluster."""
        return Cluster.from_json(json.dumps(self.cluster))

    @property
    def text(self) -> str:
        """The same for a person."""
        return f"plan {self.now.label}, adapted after step {self.step:,}: {self.why}"


def digest_cluster(cluster: Cluster) -> str:
    """Return a digest of a cluster's numbers."""
    return hashlib.sha256(cluster.to_json().encode()).hexdigest()[:16]


def write_saved_plan(path: Path, saved_plan: SavedPlan) -> None:
    """Write the plan that the next sitting runs."""
    write_atomic(path, json.dumps(asdict(saved_plan), indent=2) + "\n")


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
    """The plan that an earlier sitting has changed to."""
    fewer: str = ""
    """That not all processes are here, where the plan is not for those that are."""

    @property
    def now(self) -> Cluster:
        """The cluster with what an earlier sitting has measured."""
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
    # Without --adapt the run has the plan that was asked for, whatever lies there.
    earlier = read_saved_plan(path, given, num_processes) if is_adaptive else None
    planned = planned_process_count(os.environ, num_processes)
    # A saved plan is for exactly the processes that are here.
    is_short = num_processes < planned and earlier is None
    fewer = f"{num_processes} of {planned} processes are here" if is_short else ""
    return ClusterState(
        name=name, given=given, adapts=is_adaptive, earlier=earlier, fewer=fewer
    )
