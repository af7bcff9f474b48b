"""What a compiler says of its chips is what their clusters say."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
