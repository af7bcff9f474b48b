"""Folders of named arrays, written at once and read into a layout, by Orbax.

The only file that uses Orbax. A folder gets its name by a rename when everything in it
is written; until then it has a suffix by which leftovers are recognized.
"""

import functools
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import jax
import numpy as np

INCOMPLETE_SUFFIX: Final = ".orbax-checkpoint-tmp"
"""Part of the name of an incomplete folder."""

# Orbax cuts replicated arrays so that each device sends a part. For small leaves that
# costs a compilation a shape: 3.2 s instead of 0.5 s at the first save.
_MIN_SLICE_BYTES: Final = 16_000_000

# Arrays are stored flat, by leaf name, so that neither the classes of a tree nor the
# model are needed to read them. CheckpointManager is not used: it keeps a list of steps
# in memory, which goes wrong when a damaged checkpoint is moved aside or a write fails,
# and it deletes old folders under their own name, so that a kill leaves half of one.
_ARRAYS_ITEM: Final = "state"
_MANIFEST_ITEM: Final = "notes"


class OrbaxWriter:
    """Writes one folder at a time in the background."""

    def __init__(self) -> None:
        orbax = _import_orbax()
        types = orbax.type_handlers
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
        """Copy arrays to the host and begin to write; they may be donated afterwards.

        Args:
            folder: folder to write, which must not exist.
            arrays: arrays by leaf name.
            manifest: JSON values.
        """
        # Orbax stores no empty arrays: `read_arrays` makes them.
        args = self._orbax.args
        full = {name: array for name, array in arrays.items() if array.size}
        items = {
            _ARRAYS_ITEM: args.PyTreeSave(full),
            _MANIFEST_ITEM: args.JsonSave(dict(manifest)),
        }
        self._saver.save(folder.absolute(), args=args.Composite(**items))

    def wait(self) -> None:
        """Wait for the last folder; raises any error in writing it."""
        self._saver.wait_until_finished()

    def close(self) -> None:
        """Wait for the last folder and stop the threads."""
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
        folder: a complete folder.
        targets: shapes by leaf name, each with its sharding.
    """
    orbax = _import_orbax()
    arguments, empty = {}, {}
    for name, target in targets.items():
        if target.size:
            arguments[name] = orbax.ArrayRestoreArgs(
                sharding=target.sharding, global_shape=target.shape, dtype=target.dtype
            )
        else:
            whole = np.zeros(target.shape, target.dtype)
            empty[name] = jax.make_array_from_callback(
                target.shape, target.sharding, whole.__getitem__
            )
    return {**_restore_arrays(folder, arguments), **empty}


def read_on_host(folder: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Read whole arrays into host memory, whatever layout they were saved in."""
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


@functools.cache
def _import_orbax() -> ModuleType:
    """Import Orbax at its first use: half a second that no first step waits for."""
    import orbax.checkpoint

    # What Orbax prints is hidden: every error is raised as well, the rest is not for
    # users. asyncio prints errors that followed the first one whenever the garbage
    # collector drops them, so on some machines only.
    logging.getLogger("absl").addFilter(
        lambda record: "/orbax/checkpoint/" not in record.pathname
    )
    logging.getLogger("asyncio").addFilter(
        lambda record: "exception was never retrieved" not in record.getMessage()
    )

    # Orbax closes its event loop at the first error. Reads and writes that end later
    # find it closed, and TensorStore prints a traceback of each that tells the reader
    # nothing.
    original_hook = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            original_hook(unraisable)

    sys.unraisablehook = hook
    return orbax.checkpoint
