"""What a compiler says of its chips is what their clusters say."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.launch.analysis.target_compile import compile_for_target
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.meshes.targets.chips import CHIPS, TpuChip
from jaxdist.meshes.targets.compilers import (
    prepare_compilation,
    quiet_stderr,
    target_devices,
)
from jaxdist.meshes.targets.target import host_target

NAMES = [chip.name for chip in CHIPS if isinstance(chip, TpuChip)]


@pytest.mark.target
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_a_tpu_has_the_memory_that_its_compiler_leaves_a_program(name):
    target = host_target(name)
    prepare_compilation(target)
    chips = target_devices(target)
    assert len(chips) == target.devices
    # 128 GiB go in: the compiler refuses, and says what there is.
    one = NamedSharding(Mesh(np.array(chips[:1]), ("data",)), PartitionSpec())
    rows = jax.ShapeDtypeStruct((2**17, 2**18), np.float32, sharding=one)
    with pytest.raises(jax.errors.JaxRuntimeError) as refused, quiet_stderr():
        jax.jit(lambda x: x + x.sum()).lower(rows).compile()
    (found,) = re.findall(r"exceeds available HBM \(([\d.]+)G\)", str(refused.value))
    assert float(found) == round(target.device.memory.value / 2**30, 2)


@pytest.mark.target
@pytest.mark.timeout(300)
def test_an_answer_for_another_memory_is_another_answer(tmp_path):
    target = host_target("tpu-v5p")
    prepare_compilation(target)
    words = ["plan.mesh.data=4", "plan.mesh.spatial_h=1"]
    resolved = resolve_config("digits", words)
    assert compile_for_target(resolved, target, tmp_path).fits
    small = SourcedNumber(1e6, "given: less than the step takes")
    device = replace(target.device, memory=small)
    vars(target)["cluster"] = replace(target.cluster, device=device)
    answer = compile_for_target(resolved, target, tmp_path)
    assert (answer.fits, answer.capacity_bytes) == (False, 1e6)
    assert len(list(tmp_path.iterdir())) == 2
