"""The doctor: what is wrong with this machine for training, and the fix."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import psutil

from jaxdist.core.plan import Plan
from jaxdist.core.text import formatting
from jaxdist.launch.devices.jax_environment import cache_folder, is_cache_enabled
from jaxdist.launch.devices.prepare import find_platform
from jaxdist.launch.doctor.device_probe import (
    DeviceProbe,
    expected_devices,
    probe_devices,
)
from jaxdist.launch.run_folder.folder import is_writable, nearest_existing_folder
from jaxdist.launch.run_folder.lockfile import TRACKED_PACKAGES
from jaxdist.layers.attention import FUSED_KERNELS, KERNEL_DTYPES
from jaxdist.meshes.targets.compiler_options import compiler_options
from jaxdist.meshes.targets.plugins import (
    INSTALL_COMMANDS,
    compiler_version,
    installed_plugins,
)

CheckStatus = Literal["ok", "warn", "failed"]

MIN_FREE_MEMORY: Final = 2e9
"""Bytes of free host memory below which a run is likely to be killed."""
MIN_FREE_DISK: Final = 2e9
"""Bytes of free disk below which a run is likely to stop at a checkpoint."""
MIN_PYTHON: Final = (3, 11)
_RELEASE_PARTS: Final = 6
"""Numbers of a release that are compared."""


@dataclass(frozen=True, kw_only=True)
class DoctorCheck:
    """One line of the doctor's answer."""

    name: str
    """What was looked at."""
    state: CheckStatus
    """ok, warn or failed."""
    text: str
    """What was found."""
    remedy: str = ""
    """What to type; empty where all is well."""


def run_checks(plan: Plan, folder: Path) -> tuple[DoctorCheck, ...]:
    """Look at this machine.

    Args:
        plan: a plan that should run here; on a processor its mesh says how many
            devices are expected.
        folder: folder of the runs.
    """
    try:
        lines = metadata.requires("jaxdist") or []
    except metadata.PackageNotFoundError:
        lines = list(TRACKED_PACKAGES)  # a bare checkout declares no ranges
    # Optional extras may be missing, and markers (`; python_version`) are no range.
    plain = [line.split(";")[0] for line in lines if "extra ==" not in line]
    declared = {package_name(line): line[len(package_name(line)) :] for line in plain}
    installed = {}
    for package in dict.fromkeys([*TRACKED_PACKAGES, *declared]):
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)

    host = psutil.virtual_memory()
    free, total = float(host.available), float(host.total)
    # In a container its own limit ends a process, long before the host is full. There
    # is no such file outside of one, and the text is "max" where there is no limit.
    with suppress(OSError, ValueError):
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        free, total = min(free, limit - used), min(total, limit)

    cache = cache_folder(os.environ)
    if cache is None:
        text = "off (no home folder): JAX_COMPILATION_CACHE_DIR=FOLDER"
        cached = DoctorCheck(name="compile cache", state="ok", text=text)
    else:
        # A cache that an earlier run of root has made is the usual reason.
        fix = f"sudo chown -R $USER {cache.parent}, or JAX_COMPILATION_CACHE_DIR=FOLDER"
        cached = check_folder("compile cache", cache, fix)
    if not is_cache_enabled(os.environ):
        text = "off (JAX_ENABLE_COMPILATION_CACHE)"
        cached = DoctorCheck(name="compile cache", state="ok", text=text)
    probed = probe_devices(plan, os.environ)
    return (
        check_python(sys.version_info[:3]),
        check_packages(declared, installed),
        check_devices(
            probed,
            expected_devices(plan, os.environ),
            find_platform(os.environ).unusable_accelerator,
        ),
        check_memory(free, total),
        check_disk(folder, shutil.disk_usage(nearest_existing_folder(folder)).free),
        check_folder("run folder", folder, "run.dir=FOLDER, a folder of yours"),
        cached,
        check_attention(probed.platform),
        check_compilers(
            {platform: compiler_version(platform) for platform in installed_plugins()}
        ),
    )


def check_python(version: Sequence[int]) -> DoctorCheck:
    """Compare the version of Python with the oldest that works."""
    said = ".".join(map(str, version))
    oldest = ".".join(map(str, MIN_PYTHON))
    if tuple(version[:2]) >= MIN_PYTHON:
        return DoctorCheck(
            name="Python", state="ok", text=f"{said} ({oldest} or newer)"
        )
    return DoctorCheck(
        name="Python",
        state="failed",
        text=f"{said}, older than {oldest}",
        remedy=f"make env PYTHON=python{oldest}",
    )


def check_packages(
    declared: Mapping[str, str], installed: Mapping[str, str]
) -> DoctorCheck:
    """Compare the installed packages with the ranges that jaxdist declares.

    Args:
        declared: version ranges by package, `>=0.10,<0.12`.
        installed: versions by package; a missing package is not in it.
    """
    # What is missing is as wrong as what is too old: one command installs both.
    wrong = [
        f"{package}{wanted}"
        for package, wanted in declared.items()
        if package not in installed or not in_range(installed[package], wanted)
    ]
    if wrong:
        names = [f"{p} {installed.get(p, 'missing')}" for p in map(package_name, wrong)]
        return DoctorCheck(
            name="packages",
            state="failed",
            text=", ".join(names),
            remedy=f"pip install {' '.join(repr(word) for word in wrong)}",
        )
    # Six fit on a line; the others of the list rarely explain a failure.
    shown = [f"{p} {installed[p]}" for p in TRACKED_PACKAGES[:6] if p in installed]
    return DoctorCheck(name="packages", state="ok", text=", ".join(shown))


def check_attention(platform: str) -> DoctorCheck:
    """Name the kernel of attention on a platform, and for which dtypes it is.

    >>> check_attention("gpu").text, check_attention("cpu").text
    ('cudnn in bfloat16 and float16, written out in others', 'written out')
    """
    kernel = FUSED_KERNELS.get(platform)
    dtypes = " and ".join(KERNEL_DTYPES[kernel]) if kernel else ""
    text = f"{kernel} in {dtypes}, written out in others" if kernel else "written out"
    return DoctorCheck(name="attention", state="ok", text=text)


def check_compilers(installed: Mapping[str, str]) -> DoctorCheck:
    """Name the accelerators that `jaxdist compile` can compile for.

    Args:
        installed: package and version of each platform's compiler.
    """
    parts = [
        f"{platform} ({package}, {len(compiler_options(platform))} options)"
        for platform, package in sorted(installed.items())
    ]
    text = ", ".join(parts) or f"none; for TPUs {INSTALL_COMMANDS['tpu']}"
    return DoctorCheck(name="compilers", state="ok", text=text)


def check_devices(
    probed: DeviceProbe, expected: tuple[int, str], unusable_accelerator: str
) -> DoctorCheck:
    """Compare the devices that jax sees with those that should be there.

    Args:
        probed: what jax sees.
        expected: how many there should be, 0 where nothing says, and the source of it.
        unusable_accelerator: what jax cannot use here and the fix, `text: fix`, or "".
    """
    # An error of jax says more than a number of devices, so it comes first.
    count, source = expected
    if probed.error:
        text = f"jax does not start: {probed.error}"
        fix = "JAX_PLATFORMS=cpu jaxdist doctor tells whether jax itself works"
        return DoctorCheck(name="devices", state="failed", text=text, remedy=fix)
    if count and probed.devices != count:
        text = f"{probed.devices} of {count} expected ({probed.platform}; {source})"
        fix = "nvidia-smi shows what holds them; unset CUDA_VISIBLE_DEVICES shows all"
        if source.startswith("SLURM"):
            fix = "give every task its devices: srun --gpus-per-task=N, one task a node"
        elif source == "cpu, fake":
            fix = "unset XLA_FLAGS and JAX_NUM_CPU_DEVICES"
        return DoctorCheck(name="devices", state="failed", text=text, remedy=fix)
    text = f"{probed.devices} of {count or probed.devices} expected ({source})"
    # jax runs on the CPU then, correctly but slowly: a warning and no failure.
    if unusable_accelerator:
        what, _, fix = unusable_accelerator.partition(": ")
        return DoctorCheck(
            name="devices", state="warn", text=f"{text}; {what}", remedy=fix
        )
    return DoctorCheck(name="devices", state="ok", text=text)


def check_memory(free: float, total: float) -> DoctorCheck:
    """Tell whether the host has room for a run."""
    text = f"{formatting.format_size(free)} of {formatting.format_size(total)} free"
    if free >= MIN_FREE_MEMORY:
        return DoctorCheck(name="memory", state="ok", text=text)
    return DoctorCheck(
        name="memory",
        state="warn",
        text=f"{text}; a run wants {formatting.format_size(MIN_FREE_MEMORY)}",
        remedy="end other programs, or run with data.batch and plan.mesh smaller",
    )


def check_disk(folder: Path, free: float) -> DoctorCheck:
    """Tell whether the disk of the runs has room for checkpoints."""
    text = f"{folder}/: {formatting.format_size(free)} free"
    if free >= MIN_FREE_DISK:
        return DoctorCheck(name="disk", state="ok", text=text)
    return DoctorCheck(
        name="disk",
        state="warn",
        text=f"{text}; a run wants {formatting.format_size(MIN_FREE_DISK)}",
        remedy="run.dir=FOLDER on a disk with room, or checkpoint.keep=1",
    )


def check_folder(name: str, folder: Path, remedy: str) -> DoctorCheck:
    """Tell whether a folder can be written, or created."""
    if is_writable(folder):
        made = "" if folder.is_dir() else ", will be made"
        return DoctorCheck(name=name, state="ok", text=f"{folder}: writable{made}")
    # The folder need not exist yet: what counts is the one that it will be made in.
    place = nearest_existing_folder(folder)
    mode = f"mode {place.stat().st_mode & 0o777:o}" if place.is_dir() else "a file"
    text = f"{folder}: not writable ({place}: {mode})"
    return DoctorCheck(name=name, state="failed", text=text, remedy=remedy)


def in_range(version: str, specifier: str) -> bool:
    """Tell whether a version is in a range, as PEP 440 says for releases.

    >>> in_range("0.10.2", ">=0.10,<0.12"), in_range("0.12.0rc1", ">=0.10,<0.12")
    (True, False)
    >>> in_range("2.0", ">=2.0.0"), in_range("2.0.1", "==2.0.*,!=2.0.2")
    (True, True)
    >>> in_range("2.0.1", "==2.0"), in_range("2.4", "~=2.1"), in_range("3.0", "~=2.1")
    (False, True, False)
    """
    bounds = re.findall(r"(~=|[=!]=|[<>]=?)\s*(\d+(?:\.\d+)*)(\.\*)?", specifier)
    found = re.match(r"\d+(\.\d+)*", version)
    have = _release(found[0] if found else "0")
    for sign, text, is_prefix in bounds:
        bound, length = _release(text), text.count(".") + 1
        starts_alike = have[:length] == bound[:length]
        holds = {
            ">=": have >= bound,
            "<": have < bound,
            ">": have > bound,
            "<=": have <= bound,
            "==": starts_alike if is_prefix else have == bound,
            "!=": not starts_alike if is_prefix else have != bound,
            "~=": have >= bound and have[: length - 1] == bound[: length - 1],
        }
        if not holds[sign]:
            return False
    return True


def _release(text: str) -> tuple[int, ...]:
    """Return a release as numbers; suffixes such as `rc1` are left out."""
    # Filled with zeros: `2.0` is not older than `2.0.0`.
    numbers = [int(part) for part in text.split(".")]
    return (*numbers, *[0] * (_RELEASE_PARTS - len(numbers)))


def package_name(requirement: str) -> str:
    """Return the name that a requirement starts with.

    >>> package_name("jax>=0.10,<0.12"), package_name("orbax-checkpoint>=0.12")
    ('jax', 'orbax-checkpoint')
    """
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
