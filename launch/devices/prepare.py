"""Devices: the platform, how many devices there are, and the plan that fits them."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jaxdist.core.axes import AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan_resize import resize_plan
from jaxdist.launch.devices.jax_environment import (
    cache_folder,
    disable_cache_variables,
    is_cache_enabled,
    jax_variables,
    requested_virtual_devices,
    retain_freed_memory,
    set_jax_variables,
)
from jaxdist.launch.distributed.environment import planned_process_count
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.meshes.targets.plugins import INSTALL_COMMANDS, installed_plugins


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The kind of device that jax will use, found without importing jax."""

    name: str
    """cpu, gpu, tpu, or what JAX_PLATFORMS says."""
    unusable_accelerator: str = ""
    """An accelerator that is here and that jax has no plugin for."""


def find_platform(
    environ: Mapping[str, str],
    *,
    dev: Path = Path("/dev"),
    plugins: Callable[[], frozenset[str]] | None = None,
) -> Platform:
    """Tell which kind of device jax will use.

    Args:
        environ: JAX_PLATFORMS and CUDA_VISIBLE_DEVICES are read.
        dev: folder of the device files.
        plugins: returns the accelerators that jax is installed for: gpu, tpu.
    """
    # jax takes the first platform of the list that it can start.
    asked = environ.get("JAX_PLATFORMS", "").split(",")[0].strip().lower()
    if asked:
        return Platform(name={"cuda": "gpu", "rocm": "gpu"}.get(asked, asked))
    here = visible_accelerators(environ, dev)
    able = (plugins or installed_plugins)() if here else frozenset()
    for kind in here:
        if kind in able:
            return Platform(name=kind)
    unused = [
        f"a {kind} is here and jax cannot use it: {INSTALL_COMMANDS[kind]}"
        for kind in here
    ]
    return Platform(name="cpu", unusable_accelerator="; ".join(unused))


def visible_accelerators(
    environ: Mapping[str, str], dev: Path = Path("/dev")
) -> tuple[str, ...]:
    """Return the kinds of accelerator that have a device file here and are visible."""
    # CUDA hides all GPUs where the variable is set and empty, or names none that is.
    named = environ.get("CUDA_VISIBLE_DEVICES")
    hidden = named is not None and named.strip() in ("", "-1", "NoDevFiles")
    tpus = (*dev.glob("accel*"), *dev.glob("vfio/[0-9]*"))
    found = {"gpu": bool(gpu_files(dev)) and not hidden, "tpu": bool(tpus)}
    return tuple(kind for kind, here in found.items() if here)


def gpu_files(dev: Path = Path("/dev")) -> tuple[Path, ...]:
    """Return the device files of GPUs: one each with NVIDIA's driver."""
    # `nvidiactl` and `nvidia-uvm` are no GPUs. Drivers of AMD and of WSL have one file
    # for all GPUs, so their number is not known here.
    nvidia = [p for p in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    others = [p for p in (dev / "kfd", dev / "dxg") if p.exists()]  # AMD; WSL
    return tuple(sorted(nvidia)) or tuple(others)


def available_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux: a container may have fewer
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


MAX_VIRTUAL_DEVICES: Final = 64
"""Fake devices that are made without being asked for by number."""

_LATE_WARNING: Final = (
    "jax computed before its devices were made: do so inside functions only"
)
_SHRINK_ORDER: Final = ("data", "fsdp", "tensor", "pipe", *AXES)


@dataclass(frozen=True, kw_only=True)
class PreparedDevices:
    """What a run has to work with."""

    plan: Plan
    """The plan, shrunk to the devices where it was a default."""
    platform: str
    """Kind of device: cpu, gpu or tpu."""
    device_count: int
    """Devices that are here; the mesh takes as many as it needs."""
    warnings: tuple[str, ...] = ()
    """What to tell the user of the machine, a sentence each."""
    adjustments: tuple[str, ...] = ()
    """How the plan differs from the one that was given, a sentence each."""

    @property
    def title(self) -> str:
        """Number and kind, as headers show it."""
        return describe_devices(self.plan, self.platform)


def describe_devices(plan: Plan, platform: str) -> str:
    """Return number and kind of a plan's devices: `8 devices (cpu, fake)`."""
    used = plan.mesh.devices
    kind = "cpu, fake" if platform == "cpu" and used > 1 else platform
    return f"{used} device{'s' * (used > 1)} ({kind})"


def prepare_devices(
    plan: Plan, *, explicit: bool, planned_processes: int | None = None
) -> PreparedDevices:
    """Set the environment of jax for a plan, count the devices, and fit the plan.

    Call it before anything imports jax. On a machine without an accelerator jax is
    not imported; with one it is, since only jax knows how many it can use.

    Args:
        plan: the layout to run.
        explicit: it was asked for, so it must not change.
        planned_processes: processes that it is written for; None: as the environment
            says.

    Raises:
        BadInput: an explicit plan that does not fit.
    """
    platform = find_platform(os.environ)
    notes = [platform.unusable_accelerator] if platform.unusable_accelerator else []
    # Where a host was lost, the launcher starts the processes that are left, and the
    # plan is that of all of them.
    processes, changes = process_group().size, list[str]()
    planned = planned_processes or planned_process_count(os.environ, processes)
    if planned != processes:
        small = resize_plan(plan, processes, planned)
        here = f"{processes} of {planned} processes are here"
        changes.append(f"plan {plan.title} becomes {small.title}: {here}")
        plan = small

    # A processor becomes as many fake devices as the plan needs, each process its
    # share. jax reads these variables once: later ones have no effect.
    on_cpu = platform.name == "cpu"
    fake = -(-min(plan.mesh.devices, MAX_VIRTUAL_DEVICES) // processes)
    if on_cpu:
        retain_freed_memory()
    variables = jax_variables(os.environ, virtual_devices=fake if on_cpu else None)
    if not set_jax_variables(variables):
        notes.append(_LATE_WARNING)
    if is_cache_enabled(os.environ):
        folder = cache_folder(os.environ)
        if off := disable_cache_variables(folder):
            why = "no home folder" if folder is None else f"{folder} not writable"
            notes.append(f"compile cache off: {why}")
            set_jax_variables(off)

    name, devices = _count_devices(platform.name)
    fitted, change = fit_plan(plan, devices, platform=name, explicit=explicit)
    changes += [change] if change else []
    if processes > 1:
        check_even_split(fitted, devices, processes)
    return PreparedDevices(
        plan=fitted,
        platform=name,
        device_count=devices,
        warnings=tuple(notes),
        adjustments=tuple(changes),
    )


def fit_plan(
    plan: Plan, device_count: int, *, platform: str, explicit: bool
) -> tuple[Plan, str]:
    """Return the plan to run on this many devices, and what to say about it.

    Raises:
        BadInput: an explicit plan that needs more devices.
    """
    # Fewer than there are is allowed: the first devices are used.
    if plan.mesh.devices <= device_count:
        return plan, ""
    small = shrink_plan(plan, device_count)
    if not explicit:
        counted = f"{device_count} device{'s are' if device_count > 1 else ' is'} here"
        change = f"plan {plan.title} becomes {small.title}: {counted} ({platform})"
        return small, change

    # Two ways out: the mesh that fits, or fake devices, which are asked for where this
    # process is started: by the launcher where there are several.
    new = dict(small.mesh.items())
    words = [
        f"plan.mesh.{axis}={new[axis]}"
        for axis, size in plan.mesh.items()
        if size != new[axis]
    ]
    processes = process_group().size
    before = f"JAX_NUM_CPU_DEVICES={plan.mesh.devices} jaxdist ..."
    if platform != "cpu":
        before = f"JAX_PLATFORMS=cpu {before}"
    if processes > 1:
        before = f"--devices-per-process {-(-plan.mesh.devices // processes)}"
    raise BadInput(
        "the mesh is larger than the devices",
        rule="the axes of plan.mesh multiply to at most the devices that are here",
        values=f"{plan.title} needs {plan.mesh.devices}, "
        f"here are {device_count} ({platform})",
        remedy=[" ".join(words), f"or on fake devices: {before}"],
    )


def check_even_split(plan: Plan, device_count: int, num_processes: int) -> None:
    """Refuse a plan that leaves devices of several processes idle.

    jax builds a mesh from the devices of all processes, and a process without any of
    them in the mesh can neither feed it nor read from it.

    Args:
        plan: fitted to the devices.
        device_count: of all processes together.
        num_processes: how many there are.

    Raises:
        BadInput: some process would have less to do than others.
    """
    wanted = plan.mesh.devices
    if wanted == device_count:
        return
    # Each process brings as many devices, so their number divides that of the mesh.
    fewer = max(n for n in range(1, num_processes + 1) if wanted % n == 0)
    raise BadInput(
        "the processes do not share the plan evenly",
        rule="several processes use all devices that they have",
        values=f"{plan.title} needs {wanted}; {num_processes} processes have "
        f"{device_count}",
        remedy=[
            f"on fake devices: -n {fewer} --devices-per-process {wanted // fewer}",
            f"or a plan of {device_count} devices",
        ],
    )


def shrink_plan(plan: Plan, device_count: int) -> Plan:
    """Return the plan on at most this many devices: `data` keeps as much as it can.

    Each axis takes a divisor of its old size, so a batch that divided still does.

    >>> shrink_plan(Plan(mesh=MeshShape(data=4, spatial_h=2)), 4).title
    'data 4'
    """
    sizes = dict(plan.mesh.items())
    left = device_count
    # The first axes take what there is: data parallelism changes the step least.
    for axis in dict.fromkeys(_SHRINK_ORDER):
        old = sizes[axis]
        sizes[axis] = max(n for n in range(1, old + 1) if old % n == 0 and n <= left)
        left //= sizes[axis]
    return plan.on(MeshShape(**sizes))


def _count_devices(platform: str) -> tuple[str, int]:
    """Return the platform that is really used, and its number of devices."""
    # Importing jax takes a second, and on a processor the variables say the number.
    fixed = requested_virtual_devices(os.environ)
    if platform == "cpu" and "jax" not in sys.modules and fixed:
        return platform, fixed
    import jax

    try:
        return jax.default_backend(), jax.device_count()
    except RuntimeError as error:
        raise BadInput(
            f"jax finds no device of kind {platform}",
            rule="jax can start on the platform that JAX_PLATFORMS names",
            values=str(error).splitlines()[0],
            remedy=["jaxdist doctor", "or without it: JAX_PLATFORMS=cpu jaxdist ..."],
        ) from error
