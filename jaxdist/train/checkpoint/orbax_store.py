"""Vault: folders of named arrays, written at once and read into a layout, by Orbax.

The one file that knows Orbax. A folder appears under its name when everything in it is
written (a rename); until then it has a suffix by which leftovers are known.

Arrays are stored flat, by leaf name, so that neither the classes of a tree nor the
model are needed to read them. `CheckpointManager` is not used: it keeps a list of steps
in memory, which goes wrong when a damaged checkpoint is moved aside or a write fails,
and it deletes old folders under their own name, so that a kill leaves half of one.
"""

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import jax
import numpy as np

INCOMPLETE_SUFFIX: Final = ".orbax-checkpoint-tmp"
"""Part of the name of a folder that is not fully written."""

_MIN_SLICE_BYTES: Final = 16_000_000
"""Bytes from which a part of an array is worth a compilation."""

_ARRAYS_ITEM: Final = "state"
_MANIFEST_ITEM: Final = "notes"


class OrbaxWriter:
    """Writes one folder at a time in the background."""

    def __init__(self) -> None:
        orbax = _import_orbax()
        types = orbax.type_handlers
        # Orbax cuts copied arrays so that each device sends a part. For small leaves
        # that costs a compilation a shape: 3.2 s instead of 0.5 s at the first save.
        cutting = types.ArrayHandler(
            min_slice_bytes_for_replica_parallel=_MIN_SLICE_BYTES
        )
        registry = types.create_type_handler_registry((jax.Array, cutting))
        arrays = orbax.PyTreeCheckpointHandler(type_handler_registry=registry)
        handlers = {_ARRAYS_ITEM: arrays, _MANIFEST_ITEM: orbax.JsonCheckpointHandler()}
        handler = orbax.CompositeCheckpointHandler(**handlers)
        self._orbax, self._saver = orbax, orbax.AsyncCheckpointer(handler)

    def start(
        self, folder: Path, arrays: Mapping[str, jax.Array], manifest: Mapping[str, Any]
    ) -> None:
        """Copy the arrays to the host and begin to write; they may be donated after.

        Args:
            folder: where they will be; it must not exist.
            arrays: by leaf name. Orbax stores no empty ones: `read_arrays` makes them.
            manifest: JSON values.
        """
        args = self._orbax.args
        full = {name: array for name, array in arrays.items() if array.size}
        items = {
            _ARRAYS_ITEM: args.PyTreeSave(full),
            _MANIFEST_ITEM: args.JsonSave(dict(manifest)),
        }
        self._saver.save(folder.absolute(), args=args.Composite(**items))

    def wait(self) -> None:
        """Wait for the folder begun last; raises whatever went wrong in writing it."""
        self._saver.wait_until_finished()

    def close(self) -> None:
        """Wait and let go of threads."""
        self._saver.close()


def read_manifest(folder: Path) -> Any:
    """Read the JSON values written beside the arrays."""
    return (
        _import_orbax()
        .JsonCheckpointHandler()
        .restore((folder / _MANIFEST_ITEM).absolute())
    )


def read_arrays(
    folder: Path, targets: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Read arrays into the layout of their targets; no host waits for another.

    Args:
        folder: a whole folder.
        targets: by leaf name, each with its sharding.
    """
    orbax = _import_orbax()
    arguments = {
        name: orbax.ArrayRestoreArgs(
            sharding=target.sharding, global_shape=target.shape, dtype=target.dtype
        )
        for name, target in targets.items()
        if target.size
    }
    arrays = _restore_arrays(folder, arguments)
    empty = {
        name: _empty_array(target)
        for name, target in targets.items()
        if not target.size
    }
    return {**arrays, **empty}


def read_on_host(folder: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Read arrays whole into host memory, in whatever layout they were saved."""
    orbax = _import_orbax()
    arguments = {name: orbax.RestoreArgs(restore_type=np.ndarray) for name in names}
    return _restore_arrays(folder, arguments)


def _restore_arrays(folder: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if not arguments:
        return {}
    orbax = _import_orbax()
    restored: dict[str, Any] = orbax.PyTreeCheckpointHandler().restore(
        (folder / _ARRAYS_ITEM).absolute(),
        args=orbax.args.PyTreeRestore(
            dict.fromkeys(arguments, 0),
            restore_args=dict(arguments),
            partial_restore=True,
        ),
    )
    return restored


def _empty_array(target: jax.ShapeDtypeStruct) -> jax.Array:
    def block(index: tuple[slice, ...] | None) -> np.ndarray:
        return np.zeros(target.shape, target.dtype)[index or ()]

    return jax.make_array_from_callback(target.shape, target.sharding, block)


@functools.cache
def _import_orbax() -> ModuleType:
    """Import Orbax at its first use: half a second that no first step waits for.

    What it prints is hidden: every error is raised as well, the rest is not for users.
    """
    import orbax.checkpoint

    logging.getLogger("absl").addFilter(_is_not_orbax)
    logging.getLogger("asyncio").addFilter(_hide_unretrieved)
    sys.unraisablehook = functools.partial(_hide_closed_loop, sys.unraisablehook)
    return orbax.checkpoint


def _hide_closed_loop(original_hook: Callable[[Any], Any], unraisable: Any) -> None:
    """Hide what TensorStore prints of reads and writes that end after one has failed.

    Orbax closes its event loop at the first error. Each of the others finds it closed
    and prints a traceback that tells the reader nothing.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        original_hook(unraisable)


def _hide_unretrieved(record: logging.LogRecord) -> bool:
    """Hide what asyncio prints when it drops the errors that followed the first one.

    It does so whenever the garbage collector comes by, so only on some machines.
    """
    return "exception was never retrieved" not in record.getMessage()


def _is_not_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/checkpoint/" not in record.pathname
