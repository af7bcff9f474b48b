"""The platform: which kind of device jax will use, found without importing jax."""

import os
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_INSTALL_COMMANDS: Final = {
    "gpu": "pip install 'jaxdist[cuda13]' (or cuda12, for drivers before 580)",
    "tpu": "pip install 'jaxdist[tpu]'",
}


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
        f"a {kind} is here and jax cannot use it: {_INSTALL_COMMANDS[kind]}"
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


def installed_plugins() -> frozenset[str]:
    """Return the accelerators that this installation of jax has a plugin for."""
    # jax looks for its plugins in this namespace package, and for that of TPUs by the
    # name of its library.
    spec = find_spec("jax_plugins")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    names = [module.name for module in pkgutil.iter_modules(folders)]
    gpu = any("cuda" in name or "rocm" in name for name in names)
    found = {"gpu": gpu, "tpu": find_spec("libtpu") is not None}
    return frozenset(kind for kind, able in found.items() if able)


def available_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux: a container may have fewer
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
