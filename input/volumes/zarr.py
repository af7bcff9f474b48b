"""Zarr arrays, versions 2 and 3, in a folder or an object store, through TensorStore.

A store is a path or an address: `scans.zarr`, `s3://bucket/scans.zarr`, `gs://...`,
`http://...`. Reads that fail for a while are tried again, as TensorStore does; a store
that is not there when it is opened is not waited for so long.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.core.object_store import (
    CREDENTIALS_REMEDY,
    is_access_denied,
    kvstore_spec,
    open_kvstore,
    shown_error,
)
from jaxdist.input.sources import Slab
from jaxdist.input.volumes.stored_array import Wait, sampled_stamp


class ZarrArray:
    """An array of Zarr; is a `StoredArray` and a `RowReader`.

    Args:
        name: path or address of the array.
        spec: TensorStore's own description of it.
        opened: TensorStore's object, if it is open.
    """

    def __init__(self, name: str, spec: Mapping[str, Any], opened: Any) -> None:
        self.name, self._spec, self._open = name, dict(spec), opened
        self.shape = tuple(opened.shape)
        self.dtype = np.dtype(opened.dtype.numpy_dtype)

    @property
    def content(self) -> Any:
        """TensorStore's array."""
        if self._open is None:
            import tensorstore

            self._open = tensorstore.open(self._spec, open=True, read=True).result()
        return self._open

    def read_into(self, box: Slab, out: NDArray[Any]) -> Wait:
        """Begin to read a part into `out`; chunks are fetched at the same time."""
        import tensorstore

        # TensorStore decodes into the array itself: nothing is copied afterwards.
        return tensorstore.array(out).write(self.content[box]).result

    def read_rows_into(self, rows: list[int], box: Slab, out: NDArray[Any]) -> Wait:
        """Begin to read a part of each row: one request to TensorStore for all."""
        import tensorstore

        return tensorstore.array(out).write(self.content[(rows, *box)]).result

    def stamp(self) -> bytes:
        """Return a few rows."""
        return sampled_stamp(self)

    # A worker process opens it for itself.
    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": None}


class ZarrStore:
    """A folder or an object store in which arrays of Zarr are.

    Args:
        address: a path, or an address with `s3://`, `gs://`, `http://` or `https://`.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.is_remote = "://" in address
        self._kvstore: Any = None

    def metadata(self, path: str) -> Mapping[str, Any] | None:
        """Read what the store says of an array or a group; None where there is none.

        Args:
            path: inside the store; empty: the store itself.

        Returns:
            The JSON of version 3, or an object with `node_type` for version 2; with
            `arrays`, all arrays by path, where the store lists them in one place.

        Raises:
            BadInput: the store cannot be reached, or damaged JSON.
        """
        begin = f"{path}/" if path else ""
        # Version 3 has zarr.json; version 2 has .zarray and .zgroup, and one .zmetadata
        # where it is consolidated.
        if text := self._read(f"{begin}zarr.json"):
            found = self._parse(f"{begin}zarr.json", text)
            if listed := found.get("consolidated_metadata"):
                arrays = listed.get("metadata", {}).items()
                found["arrays"] = [k for k, m in arrays if m["node_type"] == "array"]
            return found
        if self._read(f"{begin}.zarray"):
            return {"node_type": "array"}
        if text := self._read(f"{begin}.zmetadata"):
            every = self._parse(f"{begin}.zmetadata", text).get("metadata", {})
            ends = [k for k in every if k.endswith("/.zarray")]
            arrays = [key.removesuffix("/.zarray") for key in ends]
            return {"node_type": "group", "arrays": arrays}
        return {"node_type": "group"} if self._read(f"{begin}.zgroup") else None

    def arrays(self, guesses: Iterable[str]) -> list[str]:
        """List the arrays of the store by path.

        Args:
            guesses: paths that are tried where a store cannot be listed.

        Raises:
            BadInput: the store cannot be reached.
        """
        found = self.metadata("") or {}
        if "arrays" in found:
            return sorted(found["arrays"])
        if self.is_remote:
            # To list a bucket is to list every chunk of it, and HTTP has no list.
            said = {path: self.metadata(path) or {} for path in guesses}
            return [
                path
                for path, one in said.items()
                if one.get("shape") or one.get("node_type") == "array"
            ]
        return sorted(self._walk(Path(self.address), ""))

    def open(self, path: str) -> ZarrArray:
        """Open an array.

        Raises:
            BadInput: there is none, or it cannot be reached.
        """
        import tensorstore

        name = f"{self.address}/{path}" if path else self.address
        # `auto` finds out which version it is.
        spec = {"driver": "auto", "kvstore": self._kvstore_spec(f"{path}/")}
        try:
            opened = tensorstore.open(spec, open=True, read=True).result()
        except ValueError as error:
            raise self._error(name, shown_error(error)) from error
        return ZarrArray(name, spec, opened)

    def _walk(self, folder: Path, inside: str) -> Iterable[str]:
        """Find arrays below a folder; the chunks of one are not looked at."""
        if (self.metadata(inside) or {}).get("node_type") == "array":
            yield inside
            return
        with os.scandir(folder) as entries:
            below = sorted(x.name for x in entries if x.is_dir())
        for name in below:
            if not name.startswith("."):
                yield from self._walk(folder / name, f"{inside}/{name}".lstrip("/"))

    def _kvstore_spec(self, path: str) -> dict[str, Any]:
        if not self.is_remote:
            home = str(Path(self.address).absolute() / path)
            return {"driver": "file", "path": f"{home}/".replace("//", "/")}
        try:
            return kvstore_spec(f"{self.address}/{path}")
        except ValueError as error:
            raise BadInput(
                f"{self.address} is no address of a store",
                rule="a store is a folder, or s3://, gs://, http:// or https://",
                values=str(error).splitlines()[0][:200],
                remedy="data.name=zarr:s3://BUCKET/scans.zarr",
            ) from error

    def _read(self, key: str) -> bytes:
        """Read a small object; empty where there is none."""
        if not self.is_remote:
            file = Path(self.address, key)
            return file.read_bytes() if file.is_file() else b""
        spec = self._kvstore_spec("")
        try:
            if self._kvstore is None:
                # One that is not there when it is opened is not waited for; arrays
                # have TensorStore's own retries, of minutes.
                self._kvstore = open_kvstore(spec, patient=False)
            return bytes(self._kvstore.read(key).result().value)
        except ValueError as error:
            raise self._error(self.address, shown_error(error)) from error

    def _parse(self, key: str, text: bytes) -> dict[str, Any]:
        try:
            found = json.loads(text)
            if not isinstance(found, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            raise self._error(f"{self.address}/{key}", str(error)) from error
        return found

    def _error(self, name: str, said: str) -> BadInput:
        remedy = (
            CREDENTIALS_REMEDY
            if is_access_denied(said)
            else ("put the store right, or data.name=zarr:ANOTHER",)
        )
        return BadInput(
            f"{name} cannot be read as Zarr",
            rule="a store is there, may be read, and has its metadata whole",
            values=said[:300],
            remedy=remedy,
        )
