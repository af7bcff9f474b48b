"""Volumes of any format as one Zarr group, in chunks that suit slabs."""

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import json_text
from jaxdist.input.prepare import prepare
from jaxdist.input.registry import check_dataset_name
from jaxdist.input.volumes.layout import FORMATS, Columns, check_sizes, open_columns
from jaxdist.input.volumes.source import Column

_CHUNK_BYTES: Final = 2**20
"""Largest chunk: a slab of any plan is read with little beside it."""
_GROUP: Final = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def prepare_volumes(
    source: str,
    name: str,
    directory: Path,
    *,
    renames: Mapping[str, str],
    size: tuple[int, ...] = (),
    chunk: tuple[int, ...] = (),
) -> dict[str, int]:
    """Write volumes as a Zarr group, version 3, a file for each array of a sample.

    The group appears in `directory/name` whole or not at all.

    Args:
        source: format and path, as `data.name` takes it: `nifti:scans`.
        name: of the data set, as `data.name` takes it.
        directory: folder of all data sets (`data.dir`).
        renames: name in the files of a key: `image`: `raw`.
        size: rows along each dim to which volumes are cut in the middle, or filled
            around; empty: all have one size.
        chunk: rows of a chunk along each dim; empty: at most 1 MiB, by halves.

    Returns:
        Samples by split.

    Raises:
        BadInput: no volumes, numbers that are not finite, or a name that is taken.
    """
    check_dataset_name(name)
    kind, _, path = source.partition(":")
    if kind not in FORMATS or not path:
        raise BadInput(
            f"{source} names no volumes",
            rule=f"volumes are one of {', '.join(FORMATS)}, and a path",
            values=source,
            remedy="jaxdist prepare nifti:FOLDER --name scans",
        )
    # All headers first: files that do not go together leave nothing behind.
    splits = open_columns(kind, path, {}, renames=renames)
    for columns in splits.values():
        check_sizes(columns, None if size else splits["train"], source)
    sides = size or chunk
    first = splits["train"].get("image")
    if sides and (first is None or len(first.shape()) - 1 != len(sides)):
        shown = "no image" if first is None else f"image {list(first.shape())}"
        raise BadInput(
            "the size does not have the dims of an image",
            rule="--size and --chunk have a number for each dim but the channels",
            values=f"{','.join(map(str, sides))} for {shown}",
            remedy="--size 128,128,128, for volumes",
        )
    prepare(directory / name, partial(_write, splits, name, size, chunk))
    return {split: _length(columns) for split, columns in splits.items()}


def chunk_shape(
    shape: tuple[int, ...], itemsize: int, limit: int = _CHUNK_BYTES
) -> tuple[int, ...]:
    """Halve the longest dim but the last until a chunk is small.

    Args:
        shape: of a sample.
        itemsize: bytes of a number.
        limit: largest chunk, bytes.

    >>> chunk_shape((128, 128, 128, 1), 4), chunk_shape((10,), 4)
    ((64, 64, 64, 1), (10,))
    """
    sides = list(shape)
    # Halves, as axes of a mesh are most often powers of 2: blocks end where chunks do.
    while math.prod(sides) * itemsize > limit and max(sides[:-1], default=1) > 1:
        longest = sides.index(max(sides[:-1]))
        sides[longest] = -(-sides[longest] // 2)
    return tuple(sides)


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _write(
    splits: Mapping[str, Columns],
    name: str,
    size: tuple[int, ...],
    chunk: tuple[int, ...],
    directory: Path,
) -> None:
    """Write all splits into `directory/name`."""
    home, described = directory / name, dict[str, Any]()
    for split, columns in splits.items():
        described[split] = _GROUP
        (home / split).mkdir(parents=True)
        (home / split / "zarr.json").write_text(json_text(_GROUP))
        for key in columns:
            _write_array(home / split / key, columns, key, size, chunk)
            text = (home / split / key / "zarr.json").read_text()
            described[f"{split}/{key}"] = json.loads(text)
    # All metadata in one place: a server that lists nothing can be asked for it.
    listed = {"kind": "inline", "must_understand": False, "metadata": described}
    whole = {**_GROUP, "consolidated_metadata": listed}
    (home / "zarr.json").write_text(json_text(whole, indent=1))


def _write_array(
    folder: Path,
    columns: Columns,
    key: str,
    size: tuple[int, ...],
    chunk: tuple[int, ...],
) -> None:
    """Write the array of a key: each sample a file, its chunks inside it."""
    import tensorstore

    column = columns[key]
    sides = columns["image"].shape(0)[:-1] if "image" in columns else ()
    lies_on_pixels = bool(sides) and column.shape()[: len(sides)] == sides
    shape = column.shape()
    if size and lies_on_pixels:
        shape = (*size, *shape[len(size) :])
    inner = chunk_shape(shape, column.dtype.itemsize)
    if chunk and lies_on_pixels:
        inner = tuple(map(min, (*chunk, *shape[len(chunk) :]), shape))
    # A shard holds whole chunks.
    shard = [-(-n // c) * c for n, c in zip(shape, inner, strict=True)]
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5}},
    ]
    index = [codecs[0], {"name": "crc32c"}]
    sharding = {"chunk_shape": [1, *inner], "codecs": codecs, "index_codecs": index}
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{folder.absolute()}/"},
        "metadata": {
            "shape": [len(column), *shape],
            "data_type": column.dtype.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [1, *shard]},
            },
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
        "create": True,
    }
    try:
        store = tensorstore.open(spec).result()
        # Each is waited for, so that one volume at a time is in memory.
        for sample in range(len(column)):
            volume = _read_whole(column, key, sample)
            store[sample].write(
                _fit(volume, shape, key) if size and lies_on_pixels else volume
            ).result()
    except BadInput:
        raise
    except ValueError as error:  # TensorStore's only exception
        raise OSError(str(error)) from error


def _read_whole(column: Column, key: str, sample: int) -> NDArray[Any]:
    """Read a volume, whose numbers are finite."""
    shape = column.shape(sample)
    volume = np.empty(shape, column.dtype)

    def refuse(values: str) -> BadInput:
        return BadInput(
            f"{key} of sample {sample} cannot be prepared",
            rule="every chunk can be decoded, and every number is finite",
            values=f"{column.name(sample)}: {values[:300]}",
            remedy="put the file right, or leave the sample out",
        )

    try:
        column.read_into(sample, tuple(map(slice, (0,) * len(shape), shape)), volume)()
    except Exception as error:  # each library has exceptions of its own
        raise refuse(str(error) or type(error).__name__) from error
    if volume.dtype.kind == "f" and not np.isfinite(volume).all():
        at = tuple(int(i[0]) for i in np.nonzero(~np.isfinite(volume)))
        raise refuse(f"{volume[at]} at {list(at)}")
    return volume


def _fit(volume: NDArray[Any], shape: tuple[int, ...], key: str) -> NDArray[Any]:
    """Cut a volume in the middle, or fill it around, to a shape."""
    # An image is filled with its least number, which is air in most scans; a mask with
    # the background.
    fill = volume.min() if key == "image" and volume.size else 0
    out = np.full(shape, fill, volume.dtype)
    place, part = [], []
    for have, want in zip(volume.shape, shape, strict=True):
        same, before = min(have, want), abs(have - want) // 2
        place.append(slice(before, before + same) if want > have else slice(0, same))
        part.append(slice(before, before + same) if have > want else slice(0, same))
    out[tuple(place)] = volume[tuple(part)]
    return out
