"""Compilers of accelerators that are not here: prepared, and asked for devices."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.meshes.targets.chips import TpuChip
from jaxdist.meshes.targets.plugins import (
    INSTALL_COMMANDS,
    check_compiler,
    compiler_version,
)
from jaxdist.meshes.targets.target import Target

_COMPILE_VARIABLES: Final = {
    # Else libtpu asks the metadata server of a cloud machine which chips it has.
    "TPU_SKIP_MDS_QUERY": "1",
    # One process at a time may use TPUs; any number may compile for them.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Nothing is run, so the accelerators that may be here are left to others.
    "JAX_PLATFORMS": "cpu",
}


def prepare_compilation(target: Target) -> None:
    """Set what the compiler of a target reads from the environment.

    Call it before anything imports jax.

    Raises:
        BadInput: this installation has no compiler for the target.
    """
    check_compiler(target.platform)
    os.environ.update(_COMPILE_VARIABLES)
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")


def target_devices(target: Target) -> list[Any]:
    """Return a target's devices: they have places and a compiler, and run nothing.

    Raises:
        BadInput: a compiler that does not fit this jax, or refuses the shape.
    """
    check_compiler(target.platform)
    from jax.experimental import topologies

    chip = target.chip
    try:
        with quiet_stderr():
            if isinstance(chip, TpuChip):
                shape = "x".join(map(str, target.shape))
                found = topologies.get_topology_desc(
                    platform="tpu",
                    topology_name=f"{chip.generation}:{shape}",
                    chip_config_name=chip.core_config,
                )
            else:
                # Slices x hosts x devices.
                shape = "x".join(map(str, (1, *target.shape)))
                found = topologies.get_topology_desc(
                    shape,
                    platform="cuda",
                    topology=shape,
                    target_config=chip.compiler_config,
                )
    except Exception as error:
        # Plugins raise whatever their C code reports; all of it is about this request.
        raise BadInput(
            f"the compiler of {chip.name} cannot be asked",
            rule="jax and the package with the compiler are of one release",
            values=f"jax {version('jax')}, {compiler_version(target.platform)}: "
            f"{str(error).splitlines()[0]}",
            remedy=INSTALL_COMMANDS[target.platform],
        ) from error
    return list(found.devices)


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keep what compiled libraries write to standard error from a person.

    The compilers write lines on machines without a TPU that mean nothing here. They
    write to the file descriptor, past `sys.stderr`.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
