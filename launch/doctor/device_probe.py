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
from jaxdist.launch.devices.prepare import find_platform, gpu_files

PROBE_TIMEOUT_S: Final = 120
"""How long jax may take to start; with a hung driver it never does."""
_SLURM_VARIABLES: Final = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


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
    """Return how many devices jax should see, and what says so.

    What SLURM allotted counts first, then the visible devices, then the device files; a
    CPU has as many as the plan needs.
    """
    platform = find_platform(environ).name
    if platform == "cpu":
        # What is set in the environment is set for runs as well.
        return requested_virtual_devices(environ) or plan.mesh.devices, "cpu, fake"
    source = next((name for name in _SLURM_VARIABLES if environ.get(name)), "")
    # Of these variables only this one is a count.
    if source == "SLURM_GPUS_ON_NODE" and environ[source].isdigit():
        return int(environ[source]), source
    if not source and platform == "gpu" and "CUDA_VISIBLE_DEVICES" in environ:
        source = "CUDA_VISIBLE_DEVICES"
    if not source:
        files = len(gpu_files()) if platform == "gpu" else 0
        return files, "device files" if files else platform
    # The others list identifiers: `0,1,2`, `0-3`, or UUIDs.
    count = 0
    for part in filter(None, environ[source].split(",")):
        low, dash, high = part.partition("-")
        ranged = dash and low.isdigit() and high.isdigit()
        count += int(high) - int(low) + 1 if ranged else 1
    return count, source


def probe_devices(plan: Plan, environ: Mapping[str, str]) -> DeviceProbe:
    """Ask jax for its devices in a process of its own, as a run would start it.

    A runtime that is initialised here could not be given up again: it would hold the
    devices, and a driver that hangs would hang the doctor.
    """
    # With the variables that a run would add, or it would see other devices.
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
            # The last line of a traceback is its message.
            error=(done.stderr.strip().splitlines() or ["no message"])[-1]
        )
    # The last line: plugins may print to standard output when they start.
    return DeviceProbe(**json.loads(done.stdout.strip().splitlines()[-1]))


_PROBE_SCRIPT = """
import json, jax
print(json.dumps({"platform": jax.default_backend(), "devices": jax.device_count()}))
"""
