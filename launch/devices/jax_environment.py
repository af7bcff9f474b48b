"""The environment of jax: fake devices, compile cache, quiet logs, the allocator."""

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

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

_MALLOPT_SETTINGS: Final = ((-8, 1), (-4, 0), (-1, 2**31 - 1))
"""`mallopt` of M_ARENA_MAX, since other arenas than the first map what is large;
M_MMAP_MAX, and M_TRIM_THRESHOLD in bytes."""
_USER_VAR_PREFIXES: Final = ("MALLOC_", "GLIBC_TUNABLES")
"""Beginnings of variables with which a user has set the allocator."""


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of compiled programs that are kept from run to run.

    None: the user has no home, and no variable names a folder.

    >>> cache_folder({"XDG_CACHE_HOME": "/cache"})
    PosixPath('/cache/jaxdist/xla')
    """
    if environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(environ["JAX_COMPILATION_CACHE_DIR"])
    home = environ.get("XDG_CACHE_HOME")
    if not home:
        try:
            home = str(Path.home() / ".cache")
        except RuntimeError:  # a container's user that no file of users knows
            return None
    return Path(home, "jaxdist", "xla")


def is_cache_enabled(environ: Mapping[str, str]) -> bool:
    """Tell whether the user left the compile cache on."""
    said = environ.get("JAX_ENABLE_COMPILATION_CACHE", "true").lower()
    return said not in ("false", "0", "no", "off", "f", "n")


def target_answer_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of what compilers said of targets; None: nothing is kept.

    >>> target_answer_folder({"XDG_CACHE_HOME": "/cache"})
    PosixPath('/cache/jaxdist/targets')
    """
    cache = cache_folder(environ)
    return cache.parent / "targets" if cache and is_cache_enabled(environ) else None


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
    if is_cache_enabled(environ) and (folder := cache_folder(environ)) is not None:
        wanted["JAX_COMPILATION_CACHE_DIR"] = str(folder)
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

    jax reads its variables once, as it is imported; from then on its `config` holds
    them, each with a type.

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
                now = getattr(jax.config, key)
                if isinstance(now, bool):
                    jax.config.update(key, text.lower() == "true")
                else:
                    number = isinstance(now, int | float)
                    jax.config.update(key, type(now)(text) if number else text)
    except RuntimeError:
        return False
    return True


def disable_cache_variables(path: Path | None) -> dict[str, str]:
    """Return what turns the cache off where it has no folder; else nothing.

    jax itself would warn at every single program.
    """
    with suppress(OSError):
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
            if os.access(path, os.W_OK | os.X_OK):
                return {}
    return {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def retain_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Have the allocator keep what is freed; call it before threads begin.

    The GNU C library gives an array of more than 32 MB back to the kernel as soon as it
    is freed. The next step asks for it again, and the kernel zeroes each page anew, for
    some microseconds: a step with 131 MB of temporaries took 1.6 times as long.

    Args:
        environ: where it has settings of the user's, these stay as they are.

    Returns:
        Whether it keeps them: other C libraries are left alone.
    """
    if sys.platform != "linux" or any(
        name.startswith(_USER_VAR_PREFIXES) for name in environ
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*each) for each in _MALLOPT_SETTINGS)
