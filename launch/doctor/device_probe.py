"""The probe: the devices that jax sees, and those it should see."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jaxdist.core.plan import Plan
from jaxdist.launch.devices.jax_environment import (
    jax_variables,
    requested_virtual_devices,
)
from jaxdist.launch.devices.platform import find_platform, gpu_files

PROBE_TIMEOUT_S: Final = 120
"""How long jax may take to start; a hung driver takes for ever."""


@dataclass(frozen=True, kw_only=True)
class DeviceProbe:
    """What jax says in a process of its own."""

    platform: str = ""
    """cpu, gpu or tpu; empty when jax failed."""
    devices: int = 0
    """Devices of that platform."""
    error: str = ""
    """Last line of what jax said when it failed."""


def expected_devices(plan: Plan, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return how many devices jax should see, and who says so.

    The scheduler's word counts first, then the device files; a processor has as many
    as the plan needs.
    """
    platform = find_platform(environ).name
    if platform == "cpu":
        return requested_virtual_devices(environ) or plan.mesh.devices, "cpu, fake"
    for variable in ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        said = environ.get(variable, "")
        if said:
            count = (
                int(said)
                if said.isdigit() and "ON" in variable
                else _count_device_ids(said)
            )
            return count, variable
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if platform == "gpu" and visible is not None:
        return _count_device_ids(visible), "CUDA_VISIBLE_DEVICES"
    files = len(gpu_files()) if platform == "gpu" else 0
    return files, "device files" if files else platform


def probe_devices(plan: Plan, environ: Mapping[str, str]) -> DeviceProbe:
    """Ask jax for its devices in a process of its own, as a run would start it."""
    fake = plan.mesh.devices if find_platform(environ).name == "cpu" else None
    added = jax_variables(environ, virtual_devices=fake)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE_SCRIPT],
            env={**environ, **added},
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return DeviceProbe(error=f"no answer for {PROBE_TIMEOUT_S} s")
    if done.returncode:
        return DeviceProbe(
            error=(done.stderr.strip().splitlines() or ["no message"])[-1]
        )
    return DeviceProbe(**json.loads(done.stdout.strip().splitlines()[-1]))


_PROBE_SCRIPT = """
import json, jax
print(json.dumps({"platform": jax.default_backend(), "devices": jax.device_count()}))
"""


def _count_device_ids(words: str) -> int:
    """Count `0,1,2` or `0-3`."""
    total = 0
    for part in filter(None, words.split(",")):
        low, dash, high = part.partition("-")
        ranged = dash and low.isdigit() and high.isdigit()
        total += int(high) - int(low) + 1 if ranged else 1
    return total
