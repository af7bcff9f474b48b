"""Targets: chips and shapes as people write them, and what their compilers are told."""

import math
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.meshes.targets.chips import CHIPS, GpuChip, TpuChip
from jaxdist.meshes.targets.compiler_options import compiler_options, program_options
from jaxdist.meshes.targets.plugins import check_compiler, installed_plugins
from jaxdist.meshes.targets.target import (
    check_target_size,
    parse_target,
    target_for,
)

NAMES = [chip.name for chip in CHIPS]


@pytest.mark.parametrize(
    ("text", "devices", "platform"),
    [
        ("tpu-v5p:4x4x4", 64, "tpu"),
        ("tpu-v5p:8x8x16", 1024, "tpu"),
        ("tpu-v4:2x2x1", 4, "tpu"),
        ("tpu-v5e:16x16", 256, "tpu"),
        ("tpu-v6e:2x4", 8, "tpu"),
        ("h100:2x8", 16, "gpu"),
        ("a100:1x1", 1, "gpu"),
        ("b200:4x8", 32, "gpu"),
    ],
)
def test_a_target_is_a_chip_and_a_shape(text, devices, platform):
    target = parse_target(text)
    assert (target.devices, target.platform) == (devices, platform)
    assert str(target) == text
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tpu-v5p",
        "tpu-v5p:",
        "tpu-v5p:64",
        "tpu-v5p:3x3x3",
        "tpu-v5p:4x4",
        "tpu-v5p:8x4x4",  # sides ascend
        "tpu-v5p:24x24x24",  # more than a pod has
        "tpu-v5e:4x4x4",
        "tpu-v5e:3x3",
        "tpu-v6e:32x32",
        "h100:8",
        "h100:1x9",
        "h100:0x8",
        "h100:-1x8",
        "h100:2000x8",
        "h100:1x8x1",
        "h100:1 x 8",
        "H100:1x8",
        "tpu:2x2x2",
        "cpu:8",
    ],
)
def test_a_target_that_does_not_exist_names_those_that_do(text):
    with pytest.raises(BadInput) as caught:
        parse_target(text)
    said = str(caught.value)
    assert "rule" in said
    assert "--target" in said or "did you mean" in said


@given(st.text(max_size=20))
def test_any_text_is_a_target_or_is_refused(text):
    for words in (text, f"tpu-v5p:{text}", f"h100:{text}"):
        try:
            target = parse_target(words)
        except BadInput:
            continue
        assert target.devices == math.prod(target.shape) >= 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("devices", [1, 4, 8, 16, 64, 100, 256])
def test_the_target_of_so_many_devices(name, devices):
    target = target_for(name, devices)
    if target is not None:
        assert target.devices == devices
        assert parse_target(str(target)) == target
    elif devices in (8, 16, 64):
        pytest.fail(f"no {name} with {devices} devices")


@pytest.mark.parametrize(
    "text", ["tpu-v5p:16x20x28", "tpu-v5p:4x4x28", "h100:2x6", "h100:4x5", "h100:1x7"]
)
def test_what_can_be_asked_for_is_found(text):
    target = parse_target(text)
    found = target_for(target.chip.name, target.devices)
    assert found is not None
    assert found.devices == target.devices


def test_a_plan_of_another_size_is_refused_with_both_ways_out():
    with pytest.raises(BadInput, match="data 4 = 4 devices") as caught:
        check_target_size(parse_target("tpu-v5p:2x2x2"), Plan(mesh=MeshShape(data=4)))
    assert "plan.mesh.data=8" in str(caught.value)
    assert "--target tpu-v5p:2x2x1" in str(caught.value)
    with pytest.raises(BadInput, match="h100:1x4"):
        check_target_size(parse_target("h100:2x8"), Plan(mesh=MeshShape(tensor=4)))
    check_target_size(parse_target("h100:1x4"), Plan(mesh=MeshShape(data=2, tensor=2)))


@pytest.mark.parametrize("chip", CHIPS, ids=NAMES)
def test_a_chip_agrees_with_its_cluster(chip):
    device = load_cluster(chip.cluster).device
    if isinstance(chip, GpuChip):
        assert chip.device_memory_size == pytest.approx(device.memory.value, rel=0.07)
        assert chip.memory_bandwidth == pytest.approx(
            device.memory_bandwidth.value, rel=0.05
        )
        assert "core_count: " in chip.compiler_config
    else:
        # Multiply-adds of the matrix units in a cycle, by the size of a unit.
        a_cycle = device.peak("bfloat16").value / 2 / chip.clock.value
        side = 256 if chip.name == "tpu-v6e" else 128
        assert a_cycle / side**2 == pytest.approx(round(a_cycle / side**2), rel=0.01)


def test_options_are_those_of_the_platform():
    assert not compiler_options("cpu")
    assert all(name.startswith("xla_") for name in compiler_options("tpu"))
    assert set(compiler_options("gpu")).isdisjoint(compiler_options("tpu"))


@pytest.mark.parametrize(
    ("dtype", "tensor", "left_out"),
    [("bfloat16", 2, 1), ("bfloat16", 1, 0), ("float32", 2, 0)],
)
def test_sparse_cores_do_not_sum_what_is_rounded_afterwards(dtype, tensor, left_out):
    plan = Plan(mesh=MeshShape(tensor=tensor))
    task = SimpleNamespace(dtype=jnp.dtype(dtype))
    layout = SimpleNamespace(platform="tpu", plan=plan, task=task)
    assert len(compiler_options("tpu")) - len(program_options(layout)) == left_out


@pytest.mark.parametrize("chip", CHIPS, ids=NAMES)
def test_a_missing_compiler_says_how_to_install_it(chip, monkeypatch):
    monkeypatch.setattr("jaxdist.meshes.targets.plugins.installed_plugins", frozenset)
    platform = "tpu" if isinstance(chip, TpuChip) else "gpu"
    with pytest.raises(BadInput, match=r"pip install 'jaxdist\["):
        check_compiler(platform)
    assert installed_plugins() <= {"tpu", "gpu"}
