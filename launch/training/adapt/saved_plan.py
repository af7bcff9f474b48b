"""Adapted: the plan that a run goes on under, beside the one it was asked for.

It lies in the folder of the run, so whatever starts the run again finds it there.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import Plan
from jaxdist.launch.run_folder.folder import write_atomic
from jaxdist.launch.run_folder.jsonl import read_json_object


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """What a run has changed its plan to."""

    asked: str
    """Digest of the cluster that was given: for another one it says nothing."""
    processes: int
    """For how many of them it is."""
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
    """Return a name of a cluster's numbers."""
    return hashlib.sha256(cluster.to_json().encode()).hexdigest()[:16]


def write_saved_plan(path: Path, saved_plan: SavedPlan) -> None:
    """Write the file."""
    write_atomic(path, json.dumps(asdict(saved_plan), indent=2) + "\n")


def read_saved_plan(path: Path, cluster: Cluster, processes: int) -> SavedPlan | None:
    """Read the file; None where it is missing, or for another cluster or number.

    Args:
        path: the file.
        cluster: the cluster that is given now.
        processes: how many there are now.
    """
    found = read_json_object(path)
    if found is None:
        return None
    with suppress(TypeError):
        one = SavedPlan(**found)
        if (one.asked, one.processes) == (digest_cluster(cluster), processes):
            return one
    return None
