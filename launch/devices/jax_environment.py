"""The environment jax starts in: platform, fake devices, compile cache, quiet logs."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_DEFAULT_VARS: Final = {
    # Every program is cached: on a laptop the many small ones take most of the time.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    # Without it a cached program carries the layer names of older code, and the audit
    # would blame the wrong layer.
    "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "true",
    # Compiler notes are for compiler authors; errors still show.
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of compiled programs that are kept from run to run.

    >>> cache_folder({"XDG_CACHE_HOME": "/cache"})
    PosixPath('/cache/jaxdist/xla')
    """
    if environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(environ["JAX_COMPILATION_CACHE_DIR"])
    home = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "jaxdist", "xla")


def is_cache_enabled(environ: Mapping[str, str]) -> bool:
    """Tell whether the user left the compile cache on."""
    said = environ.get("JAX_ENABLE_COMPILATION_CACHE", "true").lower()
    return said not in ("false", "0", "no", "off", "f", "n")


def requested_virtual_devices(environ: Mapping[str, str]) -> int | None:
    """Return the number of fake devices the user asked for, if any.

    >>> requested_virtual_devices({"JAX_NUM_CPU_DEVICES": "4"})
    4
    >>> flag = "--xla_force_host_platform_device_count=2"
    >>> requested_virtual_devices({"XLA_FLAGS": flag}), requested_virtual_devices({})
    (2, None)
    """
    said = environ.get("JAX_NUM_CPU_DEVICES", "")
    if said.isdigit():
        return int(said)
    flag = r"--xla_force_host_platform_device_count=(\d+)"
    found = re.search(flag, environ.get("XLA_FLAGS", ""))
    return int(found[1]) if found else None


def jax_variables(
    environ: Mapping[str, str], *, virtual_devices: int | None
) -> dict[str, str]:
    """Return the variables to add before jax is imported; what is set stays.

    Args:
        environ: the environment as it is.
        virtual_devices: devices to make of the processor; None on an accelerator.
    """
    wanted = dict(_DEFAULT_VARS)
    if is_cache_enabled(environ):
        wanted["JAX_COMPILATION_CACHE_DIR"] = str(cache_folder(environ))
    if virtual_devices is not None:
        wanted["JAX_PLATFORMS"] = "cpu"
        if requested_virtual_devices(environ) is None:
            wanted["JAX_NUM_CPU_DEVICES"] = str(virtual_devices)
        # XLA's pool has a thread a core, or so many. A large convolution is cut into
        # tasks of the pool, and the thread that does the last of them goes on with the
        # program: where that is a collective, it waits in the pool for devices whose
        # tasks find no thread. All devices but one can wait so, each in one place; the
        # cores are for the one. More threads are slower: four for each of 8 devices
        # take 20 % longer for a step of digits on 2 cores.
        wanted["NPROC"] = str(virtual_devices - 1 + (os.cpu_count() or 1))
    return {key: value for key, value in wanted.items() if not environ.get(key)}


def set_jax_variables(variables: Mapping[str, str]) -> bool:
    """Set variables of jax, also where a file of the user's own has imported it.

    Returns:
        Whether all of them have an effect: the number of fake devices has none once
        jax has computed something.
    """
    os.environ.update(variables)
    if "jax" not in sys.modules:
        return True
    import jax

    try:
        for name, text in variables.items():
            if (key := name.lower()).startswith("jax_"):
                jax.config.update(key, _parse_like(text, getattr(jax.config, key)))
    except RuntimeError:
        return False
    return True


def _parse_like(text: str, like: Any) -> Any:
    """Read a variable as the kind of value that jax has now."""
    if isinstance(like, bool):
        return text.lower() == "true"
    return type(like)(text) if isinstance(like, int | float) else text


def disable_cache_variables(path: Path) -> dict[str, str]:
    """Return what turns the cache off where its folder cannot be made; else nothing.

    jax itself would warn at every single program.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            return {}
    except OSError:
        pass
    return {"JAX_ENABLE_COMPILATION_CACHE": "false"}
