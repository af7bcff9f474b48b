"""Kubernetes: a command as a JobSet, whose pods are one jax program.

    JobSet NAME                    started again as a whole, when any pod fails
      Job NAME-hosts-0             one pod a node, each with a number
        pod NAME-hosts-0-0.NAME    process 0: where the others find it
        pod NAME-hosts-0-1.NAME

A JobSet gives its pods names in the cluster's DNS and deletes all of them when one has
failed, which is what processes need that wait for each other in every step.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.environment import (
    RANK_VAR,
    START_TIMEOUT_VAR,
    rank_variables,
)
from jaxdist.launch.distributed.exit_codes import EXIT_BAD_INPUT
from jaxdist.launch.launchers.program import check_option_range, program_command

JOB_NAME: Final = "hosts"
"""Name of the one job of the set."""
COORDINATOR_PORT: Final = 29500
"""Where process 0 listens; every pod has an address, and all ports of it."""
MOUNT_PATH: Final = "/work"
"""Where pods have the volume, and where their command is run."""
START_TIMEOUT_S: Final = 1800
"""Seconds in which all pods have a node and their image."""
TERMINATION_GRACE_S: Final = 120
"""Seconds that a pod has to save, once it is asked to end."""
DEFAULT_JOBSET_RESTARTS: Final = 3
"""How often a set is started again."""
_MAX_NODES: Final = 100_000
_MAX_GPUS: Final = 64
# The completion index of an indexed job: its controller gives each pod one.
_INDEX_FIELD: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# Pods have longer names, of at most 63 letters.
_NAME_PATTERN: Final = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class JobSet:
    """A set of pods, each with one process of a command."""

    command: tuple[str, ...]
    """Words of the command line of each process, in the image."""
    name: str
    """Name of the set."""
    nodes: int
    """How many pods."""
    image: str
    """Image with Python, jax and jaxdist."""
    volume_claim: str
    """A claim for a volume that all pods write: the runs go there."""
    gpus_per_node: int = 0
    """Of each pod: all that its node has."""
    devices_per_process: int | None = None
    """Fake devices of each; None leaves that to the command."""
    max_restarts: int = DEFAULT_JOBSET_RESTARTS
    """How often the set is started again."""
    grace_s: int = TERMINATION_GRACE_S
    """Seconds that pods have to save."""
    kubectl_options: tuple[str, ...] = ()
    """More options of kubectl."""

    def __post_init__(self) -> None:
        check_option_range("--nodes", self.nodes, _MAX_NODES)
        check_option_range("--gpus-per-node", self.gpus_per_node or None, _MAX_GPUS)
        check_option_range("--devices-per-process", self.devices_per_process, _MAX_GPUS)
        for option, text in (("--name", self.name), ("--volume", self.volume_claim)):
            if not _NAME_PATTERN.fullmatch(text):
                near = re.sub(r"[^a-z0-9]+", "-", text.lower())[:36].strip("-")
                # 36 letters leave room for this, too.
                near = near if near[:1].isalpha() else f"run-{near or 1}"
                raise BadInput(
                    f"{text!r} is no name in a cluster",
                    rule=f"{option} is 1 to 40 small letters, digits and -, and begins "
                    "with a letter",
                    values=f"{option} {text}",
                    remedy=f"{option} {near}",
                )

    @property
    def coordinator(self) -> str:
        """Where process 0 listens, by its name in the cluster's DNS."""
        return f"{self.name}-{JOB_NAME}-0-0.{self.name}:{COORDINATOR_PORT}"

    @property
    def kubectl_argv(self) -> tuple[str, ...]:
        """The command line that submits it."""
        return "kubectl", *self.kubectl_options, "apply", "-f", "-"

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the JobSet."""
        place = rank_variables(
            rank=0,
            num_processes=self.nodes,
            coordinator=self.coordinator,
            devices_per_process=self.devices_per_process,
        )
        # Pods of an indexed job differ in their index alone, which is their rank.
        index = {"valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}}
        # Pods start minutes apart where nodes are added or images pulled.
        variables = {**place, START_TIMEOUT_VAR: str(START_TIMEOUT_S)}
        gpus = {"limits": {"nvidia.com/gpu": self.gpus_per_node}}
        container = {
            "name": "process",
            "image": self.image,
            "command": list(self.command),
            "workingDir": MOUNT_PATH,
            "env": [
                {"name": name, **(index if name == RANK_VAR else {"value": text})}
                for name, text in variables.items()
            ],
            **({"resources": gpus} if self.gpus_per_node else {}),
            "volumeMounts": [
                {"name": "work", "mountPath": MOUNT_PATH},
                {"name": "memory", "mountPath": "/dev/shm"},
            ],
        }
        pod = {
            # A job with a pod failure policy allows no other.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace_s,
            "containers": [container],
            "volumes": [
                {
                    "name": "work",
                    "persistentVolumeClaim": {"claimName": self.volume_claim},
                },
                # NCCL shares memory between the GPUs of a pod; the default is 64 MiB.
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
        job = {
            "completionMode": "Indexed",
            "completions": self.nodes,
            "parallelism": self.nodes,
            # The set starts all pods again; a job that did so with one pod alone would
            # leave the others waiting for the one that they knew.
            "backoffLimit": 0,
            # What is refused fails the job with a reason of its own; the rest, 75 as
            # well, with that of more failed pods than the limit.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"operator": "In", "values": [EXIT_BAD_INPUT]},
                    }
                ]
            },
            "template": {"spec": pod},
        }
        # By that reason the set ends: what was refused would be refused again.
        refused = {
            "name": "refused",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy"],
        }
        jobs = [{"name": JOB_NAME, "replicas": 1, "template": {"spec": job}}]
        return {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": self.name},
            "spec": {
                "failurePolicy": {"maxRestarts": self.max_restarts, "rules": [refused]},
                "replicatedJobs": jobs,
            },
        }

    def manifest_yaml(self) -> str:
        """Return the manifest as YAML."""
        return yaml.safe_dump(self.manifest(), sort_keys=False, width=88)


def image_command(program: Sequence[str], commands: Sequence[str]) -> tuple[str, ...]:
    """Return the words that start a program in an image, whose PATH is not known here.

    Args:
        program: `train` with its words, or any program with its own.
        commands: names of all jaxdist commands.

    Raises:
        BadInput: nothing to start, or a jaxdist command for one process.
    """
    if program and program[0] not in commands:
        return tuple(program)
    # The first word is the Python of this machine.
    _, *words = program_command(program, commands)
    return ("python", *words)


def submit_jobset(job: JobSet) -> str:
    """Submit a set, and return what kubectl says.

    Raises:
        BadInput: there is no kubectl here, or the cluster refuses the set.
    """
    if shutil.which("kubectl") is None:
        raise BadInput(
            "no Kubernetes here",
            rule="launch k8s submits with kubectl",
            values="kubectl is not on PATH",
            remedy="the same with --print, and that into: kubectl apply -f -",
        )
    done = subprocess.run(
        job.kubectl_argv,
        input=job.manifest_yaml(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BadInput(
            "Kubernetes does not take the set",
            rule="kubectl reaches a cluster that has JobSet",
            values=done.stderr.strip(),
            remedy="--kubectl=--context=NAME, --kubectl=--namespace=NAME and the like; "
            "JobSet is installed once a cluster: https://jobset.sigs.k8s.io",
        )
    return done.stdout
