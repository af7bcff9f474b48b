"""`jaxdist launch k8s`: a JobSet that a cluster takes, and that joins its pods."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.launchers.kubernetes import JobSet
from jaxdist.launch.launchers.processes.loopback import Loopback

EXAMPLE = Path(__file__).parents[3] / "launch" / "launchers" / "scripts" / "jobset.yaml"
NEEDED = "--nodes", "4", "--image", "registry.example.com/jaxdist", "--volume", "runs"


def printed(capfd, *words):
    assert main(["launch", "k8s", *words]) == 0
    return yaml.safe_load(capfd.readouterr().out)


def pod(tree):
    job = tree["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job, job["template"]["spec"], job["template"]["spec"]["containers"][0]


def test_the_example_is_what_the_command_writes(capfd):
    words = *NEEDED, "--gpus-per-node", "8", "--print", "--", "train", "resnet50"
    assert printed(capfd, *words) == yaml.safe_load(EXAMPLE.read_text())


def test_a_cluster_takes_it_by_the_published_types(capfd):
    """To those a field that they do not have is none: it would be missing here."""
    from kubeflow_trainer_api.models.jobset_v1alpha2_failure_policy_rule import (
        JobsetV1alpha2FailurePolicyRule as Rule,
    )
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    more = "--gpus-per-node", "8", "--devices-per-process", "2", "--print"
    tree = printed(capfd, *NEEDED, *more, "--", "train", "digits")
    assert JobsetV1alpha2JobSet.from_dict(tree).to_dict() == tree
    (rule,) = tree["spec"]["failurePolicy"]["rules"]
    assert rule["action"] in Rule.model_fields["action"].description


def test_options_are_in_the_manifest(capfd):
    more = "--name", "mine", "--restarts", "7", "--grace", "59.5"
    how = "--devices-per-process", "2", "--print", "--"
    tree = printed(capfd, *NEEDED, *more, *how, "python", "my_script.py")
    job, spec, process = pod(tree)
    assert tree["metadata"]["name"] == "mine"
    assert tree["spec"]["failurePolicy"]["maxRestarts"] == 7
    assert (job["completions"], job["parallelism"]) == (4, 4)
    assert spec["terminationGracePeriodSeconds"] == 60
    assert process["command"] == ["python", "my_script.py"]
    assert "resources" not in process
    values = {each["name"]: each.get("value") for each in process["env"]}
    assert values["JAXDIST_COORDINATOR"] == "mine-hosts-0-0.mine:29500"
    assert values["JAX_NUM_CPU_DEVICES"] == "2"


def test_every_value_of_a_variable_is_text(capfd):
    """A number there is refused by a cluster."""
    _, _, process = pod(printed(capfd, *NEEDED, "--print", "--", "train", "digits"))
    assert all(isinstance(e.get("value", ""), str) for e in process["env"])


def test_pods_with_these_variables_are_one_program_and_ask_no_cluster():
    """As in a pod: Kubernetes is there, and no account that may ask it."""
    text = (
        "import jax, warnings; warnings.simplefilter('error');"
        "from jaxdist.launch.distributed import initialize; print(initialize(), jax.process_count())"
    )
    tree = JobSet(
        command=("x",), name="x", nodes=2, image="x", volume_claim="x"
    ).manifest()
    env = {e["name"]: e["value"] for e in pod(tree)[2]["env"] if "value" in e}
    kept = {k: env[k] for k in ("JAXDIST_HOSTS", "JAXDIST_START_S")}
    there = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", **kept}
    done = Loopback(2).run([sys.executable, "-c", text], env=there, timeout=60)
    assert [each.stdout for each in done] == ["0 2\n", "1 2\n"]
    assert not any("Kubernetes" in each.stderr for each in done)


def kubectl(folder, monkeypatch, script):
    """Put a kubectl in front of the path: a shell script."""
    path = folder / "kubectl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_it_is_handed_to_kubectl(tmp_path, monkeypatch, capfd):
    kubectl(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/words; cat > {tmp_path}/in')
    words = *NEEDED, "--kubectl=--namespace=us", "--", "train", "digits"
    assert main(["launch", "k8s", *words]) == 0
    assert (tmp_path / "words").read_text() == "--namespace=us apply -f -\n"
    assert yaml.safe_load((tmp_path / "in").read_text())["kind"] == "JobSet"


def test_what_the_cluster_refuses_is_said(tmp_path, monkeypatch, capfd):
    kubectl(tmp_path, monkeypatch, "cat > /dev/null; echo no kind JobSet >&2; exit 1")
    assert main(["launch", "k8s", *NEEDED, "--", "train", "digits"]) == 2
    assert "no kind JobSet" in capfd.readouterr().err


def test_without_kubectl_the_command_is_named(monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert main(["launch", "k8s", *NEEDED, "--", "train", "digits"]) == 2
    assert "kubectl is not on PATH" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--nodes", "4", "--image", "x", "--", "train"), "required: --volume"),
        ((*NEEDED, "--port", "3000", "--", "train"), "takes no --port"),
        ((*NEEDED, "--", "eval", "digits"), "the work of one process"),
        (NEEDED, "there is nothing to start"),
    ],
)
def test_what_cannot_be_started(words, wrong, capfd):
    assert main(["launch", "k8s", *words]) == 2
    assert wrong in capfd.readouterr().err


def test_numbers_and_names_that_cannot_be():
    usual = dict(command=("x",), name="x", nodes=1, image="x", volume_claim="x")
    for wrong, rule in [
        ({"nodes": 0}, "--nodes is between 1"),
        ({"gpus_per_node": -1}, "--gpus-per-node is between 1"),
        ({"name": "My run"}, "--name my-run"),
        ({"volume_claim": "-"}, "--volume run-1"),
    ]:
        with pytest.raises(BadInput, match=rule):
            JobSet(**usual | wrong)
