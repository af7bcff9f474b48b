"""How many devices there are, and the plan that fits on them."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.axes import AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.devices.jax_environment import (
    cache_folder,
    disable_cache_variables,
    is_cache_enabled,
    jax_variables,
)
from jaxdist.launch.devices.prepare import (
    MAX_VIRTUAL_DEVICES,
    check_even_split,
    find_platform,
    fit_plan,
    gpu_files,
    shrink_plan,
)

DIGITS = Plan(mesh=MeshShape(data=4, spatial_h=2))

PREPARE = """
import json, os, sys
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.devices.prepare import prepare_devices
mesh, explicit = json.loads(sys.argv[1])
try:
    found = prepare_devices(Plan(mesh=MeshShape(**mesh)), explicit=explicit)
except BadInput as error:
    print(json.dumps({"error": str(error)}))
else:
    early = "jax" in sys.modules
    import jax
    cache = str(jax.config.jax_compilation_cache_dir)
    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    print(json.dumps({
        "title": found.plan.title, "devices": found.title, "notes": found.warnings + found.adjustments,
        "early": early, "count": jax.device_count(), "cache": cache,
        "files": len(os.listdir(cache)) if os.path.isdir(cache) else 0,
        "metadata": jax.config.jax_compilation_cache_include_metadata_in_key,
    }))
"""


@pytest.fixture
def prepare(tmp_path):
    """Prepare devices in a process of its own, where jax was never imported."""

    def run(mesh, *, explicit=False, **environ):
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("JAX_", "XLA_", "SLURM", "TF_CPP"))
        }
        env |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu", **environ}
        done = subprocess.run(
            [sys.executable, "-c", PREPARE, json.dumps([mesh, explicit])],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


def test_a_processor_becomes_as_many_devices_as_the_plan_needs(prepare, tmp_path):
    found = prepare({"data": 4, "spatial_h": 2})
    assert found["count"] == 8
    assert found["devices"] == "8 devices (cpu, fake)"
    assert found["title"] == "data 4 x spatial_h 2"
    assert found["notes"] == []
    assert not found["early"]
    assert found["cache"] == str(tmp_path / "jaxdist" / "xla")
    assert found["files"] > 0
    assert found["metadata"]


def test_a_default_plan_shrinks_to_the_devices_the_user_set(prepare):
    found = prepare({"data": 4, "spatial_h": 2}, JAX_NUM_CPU_DEVICES="4")
    assert found["count"] == 4
    assert found["title"] == "data 4"
    assert found["notes"] == [
        "plan data 4 x spatial_h 2 becomes data 4: 4 devices are here (cpu)"
    ]


def test_an_explicit_plan_is_refused_instead(prepare):
    flag = "--xla_force_host_platform_device_count=2"
    found = prepare({"data": 4}, explicit=True, XLA_FLAGS=flag)
    assert found["error"] == (
        "the mesh is larger than the devices\n"
        "  rule     the axes of plan.mesh multiply to at most the devices that are here\n"
        "  values   data 4 needs 4, here are 2 (cpu)\n"
        "  remedy   plan.mesh.data=2\n"
        "           or on fake devices: JAX_NUM_CPU_DEVICES=4 jaxdist ..."
    )


def test_fake_devices_have_a_limit_that_can_be_raised(prepare):
    mesh = {"data": 2 * MAX_VIRTUAL_DEVICES}
    assert "here are 64 (cpu)" in prepare(mesh, explicit=True)["error"]
    raised = prepare(
        mesh, explicit=True, JAX_NUM_CPU_DEVICES=str(2 * MAX_VIRTUAL_DEVICES)
    )
    assert raised["count"] == 2 * MAX_VIRTUAL_DEVICES


def test_a_cache_that_cannot_be_written_is_off_and_said_so(prepare):
    found = prepare({"data": 2}, XDG_CACHE_HOME="/proc/nothing")
    assert found["notes"] == [
        "compile cache off: /proc/nothing/jaxdist/xla not writable"
    ]


def test_the_user_can_switch_the_cache_off(prepare, tmp_path):
    found = prepare({"data": 2}, JAX_ENABLE_COMPILATION_CACHE="false")
    assert (found["files"], found["notes"]) == (0, [])
    assert not list(tmp_path.iterdir())


def test_what_the_user_set_stays():
    mine = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": "/mine",
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }
    added = jax_variables(mine, virtual_devices=8)
    assert added["JAX_NUM_CPU_DEVICES"] == "8"
    assert not set(mine) & set(added)
    assert cache_folder(mine).as_posix() == "/mine"


def test_the_pool_has_more_threads_than_there_are_fake_devices():
    """Each may wait in it for the others, whose convolutions need a thread as well."""
    assert int(jax_variables({}, virtual_devices=8)["NPROC"]) == 7 + os.cpu_count()
    assert int(jax_variables({}, virtual_devices=1)["NPROC"]) >= os.cpu_count()
    assert "NPROC" not in jax_variables({"NPROC": "3"}, virtual_devices=8)


def test_on_accelerators_the_platform_is_left_to_jax():
    added = jax_variables({}, virtual_devices=None)
    assert "NPROC" not in added
    assert "JAX_PLATFORMS" not in added
    assert "JAX_NUM_CPU_DEVICES" not in added


def test_the_cache_is_on_unless_said_otherwise(tmp_path):
    assert is_cache_enabled({})
    assert is_cache_enabled({"CI": "true"})
    assert not is_cache_enabled({"JAX_ENABLE_COMPILATION_CACHE": "False"})
    assert disable_cache_variables(tmp_path / "a" / "b") == {}


@pytest.fixture
def dev(tmp_path):
    def make(*names):
        for name in names:
            path = tmp_path / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / "dev"

    return make


def able(*kinds):
    return lambda: frozenset(kinds)


def test_no_device_file_means_a_processor(dev):
    assert (
        find_platform({}, dev=dev("null", "nvidiactl"), plugins=able("gpu")).name
        == "cpu"
    )


def test_gpus_count_by_their_files(dev):
    folder = dev("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/x")
    assert [path.name for path in gpu_files(folder)] == ["nvidia0", "nvidia1"]
    assert find_platform({}, dev=folder, plugins=able("gpu")).name == "gpu"


def test_a_gpu_that_jax_cannot_use_is_said(dev):
    found = find_platform({}, dev=dev("nvidia0"), plugins=able())
    assert found.name == "cpu"
    assert "jaxdist[cuda13]" in found.unusable_accelerator


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_do_not_count(dev, hidden):
    environ = {"CUDA_VISIBLE_DEVICES": hidden}
    found = find_platform(environ, dev=dev("nvidia0"), plugins=able("gpu"))
    assert (found.name, found.unusable_accelerator) == ("cpu", "")


@pytest.mark.parametrize("name", ["accel0", "vfio/0"])
def test_tpu(dev, name):
    assert find_platform({}, dev=dev(name), plugins=able("tpu")).name == "tpu"


@pytest.mark.parametrize(
    ("asked", "name"),
    [("cpu", "cpu"), ("cuda,cpu", "gpu"), ("tpu", "tpu"), ("METAL", "metal")],
)
def test_the_users_platform_comes_first(dev, asked, name):
    found = find_platform(
        {"JAX_PLATFORMS": asked}, dev=dev("nvidia0"), plugins=able("gpu")
    )
    assert found.name == name


@pytest.mark.parametrize(
    ("devices", "title"),
    [
        (8, "data 4 x spatial_h 2"),
        (7, "data 4"),
        (4, "data 4"),
        (3, "data 2"),
        (2, "data 2"),
        (1, "data 1"),
    ],
)
def test_data_keeps_first(devices, title):
    assert shrink_plan(DIGITS, devices).title == title


@given(
    st.fixed_dictionaries({axis: st.integers(1, 6) for axis in AXES}),
    st.integers(1, 64),
)
def test_a_shrunk_plan_fits_and_divides_what_it_was(sizes, devices):
    plan = Plan(mesh=MeshShape(**sizes), replicated_axes=("tensor",))
    small = shrink_plan(plan, devices)
    assert small.mesh.devices <= devices
    assert all(sizes[axis] % size == 0 for axis, size in small.mesh.items())
    assert small.replicated_axes == plan.replicated_axes
    fits = math.prod(sizes.values()) <= devices
    assert (small == plan) == (fits or plan.mesh.devices <= devices)


def test_the_end_of_a_split_shrinks_away_with_the_split():
    part = replace(DIGITS, spatial_end="block3")
    assert shrink_plan(part, 8) == part
    assert shrink_plan(part, 4) == Plan(mesh=MeshShape(data=4))


def test_a_default_plan_settles_and_says_so():
    assert fit_plan(DIGITS, 8, platform="gpu", explicit=False) == (DIGITS, "")
    plan, note = fit_plan(DIGITS, 1, platform="gpu", explicit=False)
    assert plan == Plan()
    assert note == "plan data 4 x spatial_h 2 becomes data 1: 1 device is here (gpu)"


def test_a_mesh_larger_than_the_accelerators():
    with pytest.raises(BadInput) as caught:
        fit_plan(DIGITS, 4, platform="gpu", explicit=True)
    assert caught.value.values == "data 4 x spatial_h 2 needs 8, here are 4 (gpu)"
    assert caught.value.remedy == (
        "plan.mesh.spatial_h=1",
        "or on fake devices: JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8 jaxdist ...",
    )


def test_several_processes_use_all_their_devices():
    plan = Plan(mesh=MeshShape(data=4, spatial_h=2))
    check_even_split(plan, 8, 4)
    with pytest.raises(BadInput, match="needs 8; 3 processes have 9") as caught:
        check_even_split(plan, 9, 3)
    assert caught.value.remedy[0] == "on fake devices: -n 2 --devices-per-process 4"


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    """As in a container whose user no file of users knows."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder({}) is None
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/jaxdist/xla")
    assert "JAX_COMPILATION_CACHE_DIR" not in jax_variables({}, virtual_devices=None)
    assert disable_cache_variables(None) == {"JAX_ENABLE_COMPILATION_CACHE": "false"}
