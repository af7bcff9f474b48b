"""The doctor's checks, each with a good and a bad machine."""

import json
import sys

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.cli.main import main
from jaxdist.launch.doctor import checks, device_probe
from jaxdist.launch.doctor.device_probe import DeviceProbe

DIGITS = Plan(mesh=MeshShape(data=4, spatial_h=2))
CPU = {"JAX_PLATFORMS": "cpu"}


def test_python():
    assert checks.check_python((3, 12, 1)).state == "ok"
    old = checks.check_python((3, 10, 4))
    assert (old.state, old.remedy) == ("failed", "make env PYTHON=python3.11")


def test_packages_out_of_range_and_missing():
    wanted = {"jax": ">=0.10,<0.12", "grain": ">=0.2.18"}
    assert (
        checks.check_packages(wanted, {"jax": "0.10.2", "grain": "0.3"}).state == "ok"
    )
    bad = checks.check_packages(wanted, {"jax": "0.9.1"})
    assert (bad.state, bad.text) == ("failed", "jax 0.9.1, grain missing")
    assert bad.remedy == "pip install 'jax>=0.10,<0.12' 'grain>=0.2.18'"


@pytest.mark.parametrize(
    ("version", "specifier", "holds"),
    [
        ("2.1", "==2.0", False),
        ("2.0.0", "==2.0", True),
        ("2.0.7", "==2.0.*", True),
        ("2.1", "==2.0.*", False),
        ("2.1", "!=2.1", False),
        ("2.1.1", ">=2,!=2.1.*", False),
        ("2.1.1", ">=2,!=2.1", True),
        ("3.0", "~=2.1", False),
        ("2.4", "~=2.1", True),
        ("2.2.0", "~=2.1.4", False),
        ("2.1", ">2.1", False),
        ("2.1.1", "> 2.1", True),
        ("2.1.0", "<=2.1", True),
        ("2.1.1", "<=2.1", False),
        ("2.1rc1", ">=2.0", True),
    ],
)
def test_versions_in_ranges(version, specifier, holds):
    assert checks.in_range(version, specifier) is holds


def test_expected_devices():
    assert device_probe.expected_devices(DIGITS, CPU) == (8, "cpu, fake")
    assert (
        device_probe.expected_devices(DIGITS, {**CPU, "JAX_NUM_CPU_DEVICES": "4"})[0]
        == 4
    )
    gpu = {"JAX_PLATFORMS": "cuda"}
    on_node = {**gpu, "SLURM_GPUS_ON_NODE": "4"}
    assert device_probe.expected_devices(DIGITS, on_node) == (4, "SLURM_GPUS_ON_NODE")
    listed = {**gpu, "SLURM_JOB_GPUS": "0,2-3"}
    assert device_probe.expected_devices(DIGITS, listed) == (3, "SLURM_JOB_GPUS")
    shown = {**gpu, "CUDA_VISIBLE_DEVICES": "1,3"}
    assert device_probe.expected_devices(DIGITS, shown) == (2, "CUDA_VISIBLE_DEVICES")


def test_devices():
    seen = DeviceProbe(platform="cpu", devices=8)
    good = checks.check_devices(seen, (8, "cpu, fake"), "")
    assert (good.state, good.text) == ("ok", "8 of 8 expected (cpu, fake)")


def test_one_gpu_of_four_under_slurm():
    seen = DeviceProbe(platform="gpu", devices=1)
    bad = checks.check_devices(seen, (4, "SLURM_GPUS_ON_NODE"), "")
    assert (bad.state, bad.text) == (
        "failed",
        "1 of 4 expected (gpu; SLURM_GPUS_ON_NODE)",
    )
    assert "--gpus-per-task" in bad.remedy


def test_a_gpu_that_jax_cannot_use():
    unused = "a gpu is here and jax cannot use it: pip install 'jaxdist[cuda13]'"
    seen = DeviceProbe(platform="cpu", devices=8)
    warned = checks.check_devices(seen, (8, "cpu, fake"), unused)
    assert warned.state == "warn"
    assert warned.remedy == "pip install 'jaxdist[cuda13]'"


def test_jax_that_does_not_start():
    found = device_probe.probe_devices(
        DIGITS, {"JAX_PLATFORMS": "nonsense", "PATH": ""}
    )
    bad = checks.check_devices(found, (1, "nonsense"), "")
    assert bad.state == "failed"
    assert "nonsense" in bad.text


def test_memory_and_disk(tmp_path):
    assert checks.check_memory(14.1e9, 15.6e9).text == "14.1 GB of 15.6 GB free"
    assert checks.check_memory(0.5e9, 15.6e9).state == "warn"
    assert checks.check_disk(tmp_path, 50e9).state == "ok"
    assert checks.check_disk(tmp_path, 1e9).state == "warn"


def test_folders(tmp_path):
    assert checks.check_folder("run folder", tmp_path / "runs", "x").state == "ok"
    assert not (tmp_path / "runs").exists()
    (tmp_path / "file").touch()
    bad = checks.check_folder("run folder", tmp_path / "file" / "runs", "x")
    assert (bad.state, bad.remedy) == ("failed", "x")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAX_ENABLE_COMPILATION_CACHE", raising=False)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    return tmp_path


def test_doctor_on_this_machine(here, capsys):
    code = main(["doctor", "--dir", str(here / "runs")])
    out = capsys.readouterr().out
    assert f"  ok      Python        {sys.version.split()[0]}" in out
    assert "  ok      devices       2 of 2 expected (cpu, fake)" in out
    assert out.splitlines()[-1].endswith(" 0 failed")
    assert code == 0
    assert not list(here.iterdir())


def test_doctor_fails_when_a_check_fails(here, capsys):
    (here / "runs").touch()
    assert main(["doctor", "--json", "--dir", str(here / "runs")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == 1
    failed = [check for check in found["checks"] if check["state"] == "failed"]
    assert [check["name"] for check in failed] == ["run folder"]
    assert failed[0]["remedy"]


def test_the_compilers_that_are_here_are_named():
    found = checks.check_compilers(
        {"tpu": "libtpu 0.0.42.1", "gpu": "jax-cuda13-plugin 1"}
    )
    assert found.state == "ok"
    assert "gpu (jax-cuda13-plugin 1, 2 options), tpu (libtpu 0.0.42.1, " in found.text
    assert "pip install 'jaxdist[tpu]'" in checks.check_compilers({}).text
