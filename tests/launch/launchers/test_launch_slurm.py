"""`jaxdist launch slurm`: what is submitted, and that a real SLURM runs it."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.launchers.slurm import SBATCH_SCRIPT, SlurmJob

system = [pytest.mark.system, pytest.mark.slurm, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
CONFIG = """
ClusterName=box
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def daemon(name, config):
    path = shutil.which(name, path="/usr/sbin:/sbin")
    return subprocess.Popen([path, "-D", "-f", config], stderr=subprocess.DEVNULL)


def free_ports():
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start a SLURM of one node; return its configuration."""
    at = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (at / name).mkdir()
    config, host = at / "slurm.conf", socket.gethostname().split(".")[0]
    cores = os.cpu_count()
    text = CONFIG.format(at=at, host=host, ports=free_ports(), cores=cores)
    config.write_text(text)
    running = [daemon(name, config) for name in ("slurmctld", "slurmd")]
    env = {**os.environ, "SLURM_CONF": str(config)}
    end = time.monotonic() + 60
    while "idle" not in said("sinfo", "--noheader", env=env):
        assert time.monotonic() < end, (at / "slurmctld.log").read_text()
        time.sleep(0.2)
    yield config
    for child in running:
        child.terminate()
        child.wait()


def said(*words, env):
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.fixture
def here(cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_CONF", str(cluster))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


COUNTS = """
import os, pathlib, sys, time
rank = int(os.environ["SLURM_PROCID"])
file = pathlib.Path(f"starts-{rank}")
file.write_text(file.read_text() + "x" if file.exists() else "x")
starts = len(file.read_text())
print("start", starts, flush=True)
"""


def counts(text):
    return sys.executable, "-c", COUNTS + text


def submitted(capfd, *words):
    """Submit, wait for the end, and return the lines that the job has written."""
    assert main(["launch", "slurm", "--nodes", "1", *map(str, words)]) == 0
    return ended(capfd.readouterr().out.split()[-1])


def ended(number):
    """Wait for the end of a job, and return the lines that it has written."""
    end = time.monotonic() + 240
    state = "squeue", "--noheader", "--format=%r", "--job", number
    while reason := said(*state, env=os.environ).strip():
        assert time.monotonic() < end, Path(f"slurm-{number}.out").read_text()
        if reason == "BeginTime":  # SLURM waits two minutes before it begins again
            said("scontrol", "update", f"job={number}", "starttime=now", env=os.environ)
        time.sleep(0.2)
    return Path(f"slurm-{number}.out").read_text().splitlines()


class TestSlurm:
    pytestmark = system

    def test_processes_of_a_job_are_one_jax_program(self, here, capfd):
        text = (
            "import jax; from jaxdist.launch.distributed import initialize;"
            "print(initialize(), jax.process_count(), jax.device_count())"
        )
        how = "--processes-per-node", 2, "--devices-per-process", 3, "--"
        lines = submitted(capfd, *how, sys.executable, "-c", text)
        assert sorted(lines) == ["0: 0 2 6", "1: 1 2 6"]

    def test_train_runs_as_a_job(self, here, job, capfd):
        words = "model.width=4", "epochs=0.1", f"data.dir={job.data}"
        how = "--processes-per-node", 2, "--sbatch=--job-name=mine", "--"
        lines = submitted(capfd, *how, "train", "digits", *words)
        assert any("8 devices (cpu, fake), 2 processes" in line for line in lines)
        assert (here / "runs" / "digits" / "summary.json").exists()

    def test_a_refusal_is_one_message(self, here, capfd):
        lines = submitted(
            capfd, "--processes-per-node", 2, "--", "train", "digits", "data.batch=63"
        )
        assert sum("error: the global batch" in line for line in lines) == 1
        assert not (here / "runs").exists()

    def test_a_job_that_asks_for_it_is_queued_again(self, here, capfd):
        how = "--processes-per-node", 2, "--"
        lines = submitted(capfd, *how, *counts("sys.exit(75 if starts < 3 else 0)"))
        assert sorted(line for line in lines if "start " in line) == [
            f"{rank}: start {n}" for rank in (0, 1) for n in (1, 2, 3)
        ]
        assert (
            sum("exit code 75: queued again, 1 of 100" in line for line in lines) == 1
        )

    def test_it_is_queued_again_so_often_and_no_more(self, here, capfd):
        lines = submitted(capfd, "--requeues", 1, "--", *counts("sys.exit(75)"))
        assert [line for line in lines if "start " in line] == [
            "0: start 1",
            "0: start 2",
        ]

    @pytest.mark.parametrize("end", ["sys.exit(1)", "os.kill(os.getpid(), 9)"])
    def test_what_fails_is_not(self, end, here, capfd):
        text = f"{end} if rank else time.sleep(600)"
        lines = submitted(capfd, "--processes-per-node", 2, "--", *counts(text))
        assert sum("start " in line for line in lines) == 2

    def test_one_that_asks_for_it_ends_those_that_are_stuck(self, here, capfd):
        text = (
            "sys.exit(75) if rank and starts == 1 else time.sleep(600 * (starts < 2))"
        )
        lines = submitted(capfd, "--processes-per-node", 2, "--", *counts(text))
        assert sum("start " in line for line in lines) == 4

    def test_sigterm_saves_a_step_and_the_job_goes_on(self, here, job, capfd):
        net = ROOT / "benchmarks" / "faults_net.py"
        words = "epochs=10", "checkpoint.every_steps=400", "run.name=mine"
        how = "--nodes", "1", "--processes-per-node", "2", "--"
        assert main(["launch", "slurm", *how, "train", str(net), *words]) == 0
        number, metrics = capfd.readouterr().out.split()[-1], here / "runs/mine"
        metrics /= "metrics.jsonl"
        while len(job.lines(metrics)) < 3:
            time.sleep(0.02)
        said("scancel", "--signal=TERM", number, env=os.environ)
        lines = ended(number)
        assert any("exit code 75: queued again, 1 of 100" in line for line in lines)
        assert any("in 2 attempts" in line for line in lines)
        rows = [row for row in job.lines(metrics) if row["kind"] == "train"]
        assert [row["step"] for row in rows] == list(range(1, 1001))

    def test_what_slurm_refuses_is_said(self, here, capfd):
        words = "--nodes", "1", "--sbatch=--partition=none", "--", "true"
        assert main(["launch", "slurm", *words]) == 2
        assert "invalid partition specified: none" in capfd.readouterr().err


def test_print_shows_the_command_and_the_script(capfd):
    words = "--nodes", "4", "--processes-per-node", "8", "--sbatch=--time=2:00:00"
    assert main(["launch", "slurm", *words, "--print", "--", "train", "digits"]) == 0
    first, _, *script = capfd.readouterr().out.splitlines()
    assert shlex.split(first)[:5] == [
        "sbatch",
        "--nodes=4",
        "--ntasks-per-node=8",
        "--time=2:00:00",
        str(SBATCH_SCRIPT),
    ]
    assert shlex.split(first)[-2:] == ["train", "digits"]
    assert script == SBATCH_SCRIPT.read_text().splitlines()


def test_the_script_is_a_shell_script():
    subprocess.run(["bash", "-n", SBATCH_SCRIPT], check=True)


def test_without_slurm_the_command_is_named(monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert main(["launch", "slurm", "--nodes", "2", "--", "train", "digits"]) == 2
    assert "sbatch is not on PATH" in capfd.readouterr().err


def test_numbers_that_cannot_be():
    with pytest.raises(BadInput, match="--nodes is between 1"):
        SlurmJob(command=("true",), nodes=0)
    with pytest.raises(BadInput, match="--processes-per-node is between 1"):
        SlurmJob(command=("true",), nodes=1, processes_per_node=0)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("slurm",), "jaxdist launch slurm --nodes 4 -- train digits"),
        (("local", "--nodes", "2"), "launch local takes no --nodes"),
        (("mpi", "-n", "2", "--port", "3000"), "jaxdist launch ssh takes it"),
        (("ssh", "--hosts", "a", "--nodes", "2"), "takes no --nodes"),
    ],
)
def test_each_way_takes_its_own_options(words, wrong, capfd):
    assert main(["launch", *words, "--", "true"]) == 2
    assert wrong in capfd.readouterr().err
