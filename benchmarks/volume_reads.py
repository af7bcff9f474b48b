"""Volumes a second from HDF5 and Zarr, beside loops written by hand on the same files.

    python benchmarks/volume_reads.py [--rounds 9]

Volumes are 128 x 128 x 96 float32 with a uint8 mask, drawn smooth, 16 of them; a batch
is 4. Both ways read every volume once a round, in turn, in one process, from the page
cache. By hand: a batch of `h5py` is `numpy.stack` of a read for each sample, one of
TensorStore a read for all of its samples. A slab is the half of a volume that a process
has with `spatial_d=2` over two; bytes of files are those that the kernel read.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorstore
from record import add_record_option, row, write_result

from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data
from jaxdist.input.sources import Slab
from jaxdist.input.volume_builder import prepare_volumes
from jaxdist.input.volumes.source import VolumeSource

SHAPE, SAMPLES, BATCH = (128, 128, 96), 16, 4
Batches = Callable[[], int]
"""Reads every sample once and returns the bytes of the arrays."""


def draw() -> dict[str, np.ndarray]:
    """Return smooth volumes with noise, which compress as scans do, and masks."""
    grid = np.ogrid[tuple(slice(side) for side in SHAPE)]
    wave = np.asarray(sum(np.sin(x / 9) for x in grid), np.float32)
    noise = np.random.default_rng(0)
    image = np.stack(
        [
            np.round(wave + noise.random(SHAPE, np.float32) / 8, 2)
            for _ in range(SAMPLES)
        ]
    )
    return {"image": image[..., None], "mask": (image > 0).astype(np.uint8)}


def write(folder: Path) -> dict[str, tuple[str, str]]:
    """Write the volumes in each form; return data.name and path of each."""
    arrays = draw()
    forms: dict[str, dict[str, Any]] = {
        "HDF5, contiguous": {},
        "HDF5, gzip": {"compression": "gzip", "compression_opts": 1},
    }
    found: dict[str, tuple[str, str]] = {}
    for form, how in forms.items():
        path = folder / f"{len(found)}.h5"
        with h5py.File(path, "w") as file:
            for split, count in (("train", SAMPLES), ("test", 1)):
                for key, array in arrays.items():
                    chunks = (1, 16, *array.shape[2:]) if how else None
                    file.create_dataset(
                        f"{split}/{key}", data=array[:count], chunks=chunks, **how
                    )
        found[form] = (f"hdf5:{path}", str(path))
    name = found["HDF5, contiguous"][0]
    for form, chunk in (("Zarr, as prepared", ()), ("Zarr, slices", (16, *SHAPE[1:]))):
        home = f"zarr_{len(found)}"
        prepare_volumes(name, home, folder, renames={}, chunk=chunk)
        found[form] = (f"zarr:{folder / home}", str(folder / home))
    return found


def by_hand(form: str, path: str, slab: Slab) -> Batches:
    """Return a loop that uses the library alone."""
    batches = np.arange(SAMPLES).reshape(-1, BATCH).tolist()
    if form.startswith("HDF5"):
        file = h5py.File(path, "r")

        def read_hdf5() -> int:
            total = 0
            for ids in batches:
                for key in ("image", "mask"):
                    data = file[f"train/{key}"]
                    total += np.stack([data[(i, *slab)] for i in ids]).nbytes
            return total

        return read_hdf5
    stores = []
    for key in ("image", "mask"):
        kvstore = {"driver": "file", "path": f"{path}/train/{key}/"}
        spec = {"driver": "zarr3", "kvstore": kvstore}
        stores.append(tensorstore.open(spec).result())

    def read_zarr() -> int:
        total = 0
        for ids in batches:
            cut: Any = (ids, *slab)
            # Both keys are under way at once.
            reads = [store[cut].read() for store in stores]
            total += sum(read.result().nbytes for read in reads)
        return total

    return read_zarr


def with_jaxdist(source: VolumeSource, slab: Slab) -> Batches:
    """Return the same through a source, cut as a feed cuts it."""
    cut = source.slab({"image": (*slab, slice(0, 1)), "mask": slab})
    batches = np.arange(SAMPLES).reshape(-1, BATCH)

    def read() -> int:
        return sum(array.nbytes for ids in batches for array in cut.get(ids).values())

    return read


def kernel_bytes() -> int:
    """Return the bytes that this process has read through the kernel."""
    # `rchar`: what calls of read returned, out of the page cache as well.
    return int(Path("/proc/self/io").read_text().split()[1])


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    add_record_option(parser)
    args = parser.parse_args()
    rows, whole_bytes = list[dict[str, Any]](), 0
    with tempfile.TemporaryDirectory() as folder:
        for form, (name, path) in write(Path(folder)).items():
            source, _ = open_data(DataConfig(name=name))
            assert isinstance(source, VolumeSource)
            for part, depth in (("whole", SHAPE[0]), ("slab", SHAPE[0] // 2)):
                slab = tuple(map(slice, (0,) * 3, (depth, *SHAPE[1:])))
                ways = {
                    "jaxdist": with_jaxdist(source, slab),
                    "by hand": by_hand(form, path, slab),
                }
                seconds: dict[str, list[float]] = {way: [] for way in ways}
                sizes = [read() for read in ways.values()]  # warm
                assert sizes[0] == sizes[1]
                before = kernel_bytes()
                ways["jaxdist"]()
                read_bytes = kernel_bytes() - before
                for turn in range(args.rounds):
                    # Which one is first changes: neither profits from the other.
                    for way in list(ways)[:: -1 if turn % 2 else 1]:
                        start = time.perf_counter()
                        ways[way]()
                        seconds[way].append(time.perf_counter() - start)
                case = f"{form}, {part}"
                for way, took in seconds.items():
                    rates = [SAMPLES / each for each in took]
                    middle = statistics.median(rates)
                    rows.append(
                        row(case, middle, "samples/s", figure=way, readings=rates)
                    )
                ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
                rows.append(
                    row(
                        case,
                        statistics.median(ratios),
                        "",
                        figure="jaxdist to by hand",
                        readings=ratios,
                    )
                    | {"goal": "at least 1"}
                )
                if part == "slab":
                    share = read_bytes / (whole_bytes * depth / SHAPE[0])
                    figure = "bytes of the files to its share of them"
                    rows.append(
                        row(case, share, "", figure=figure) | {"goal": "at most 1.05"}
                    )
                whole_bytes = read_bytes
                shown = (r for r in rows if r["case"] == case)
                print(case, *(f"; {r['figure']} {r['value']:.4g}" for r in shown))
    if args.record:
        write_result(
            "volume_reads",
            rows,
            title="Volumes from HDF5 and Zarr",
            measures="Samples a second of 128 x 128 x 96 float32 volumes with uint8 "
            "masks, 4 a batch, whole and the half that a process has with spatial_d=2, "
            "from the page cache: a source of jaxdist beside loops that use h5py and "
            "TensorStore alone, in turn in one process. Median of the rounds, and of "
            "their ratios.",
            not_run="half a minute",
        )


if __name__ == "__main__":
    main()
