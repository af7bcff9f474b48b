"""Samples a second over ArrayRecord files: jaxdist beside plain grain and torch.

    python benchmarks/input_rate.py [--records 50000] [--rounds 3] [--torch PYTHON]

Records are 3,072 bytes and a label, decoded to float32 / 255, 128 a batch. Each way
runs in a process of its own, in turn, `--rounds` times; the first batch is not counted.
grain reads a record a call, as its pipelines do; torch's DataLoader a batch a call, the
fastest of its ways. Batches of jaxdist are on the device, others are NumPy arrays;
its rows have one read thread, or worker processes (`data.workers`) where they say so.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from record import add_record_option, row, write_result

BATCH, ROW = 128, 3073
WAYS = {
    "grain, 16 threads": "grain",
    "jaxdist, global": "global",
    "jaxdist, Q = 0.1": "partial",
    "jaxdist, local": "local",
    "jaxdist, in memory": "memory",
    "jaxdist, global, 1 worker": "workers 1",
    "jaxdist, global, 2 workers": "workers 2",
}
TORCH = {"torch, batched, 0 workers": "torch 0", "torch, batched, 2 workers": "torch 2"}


def write(path: Path, records: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    draw = np.random.default_rng(0)
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for _ in range(records):
        writer.write(draw.integers(0, 256, ROW, np.uint8).tobytes())
    writer.close()


def decode(records: Sequence[bytes]) -> dict[str, np.ndarray]:
    rows = np.frombuffer(b"".join(records), np.uint8).reshape(-1, ROW)
    image = rows[:, 1:].reshape(-1, 32, 32, 3).astype(np.float32)
    image /= 255
    return {"image": image, "label": rows[:, 0].astype(np.int32)}


def with_jaxdist(path: Path, way: str) -> Iterator[Any]:
    from jaxdist.input import (
        ArrayRecordSource,
        Global,
        Local,
        Partial,
        Workers,
        loader,
    )
    from jaxdist.input.sources import load_into_memory

    shuffle = {
        "partial": Partial(exchange_fraction=0.1),
        "local": Local(),
    }.get(way, Global())
    source: Any = ArrayRecordSource([path], decode)
    source = load_into_memory(source) if way == "memory" else source
    threads = Workers(int(way.split()[1])) if way.startswith("workers") else 1
    return loader(source, global_batch=BATCH, shuffle=shuffle, threads=threads)


def with_grain(path: Path) -> Iterator[Any]:
    import grain

    def one(record: bytes) -> dict[str, np.ndarray]:
        return {key: array[0] for key, array in decode([record]).items()}

    records = grain.sources.ArrayRecordDataSource(str(path))
    data = grain.MapDataset.source(records).seed(0).shuffle().map(one)
    batches = data.batch(BATCH, drop_remainder=True)
    options = grain.ReadOptions(num_threads=16, prefetch_buffer_size=32)
    return iter(batches.to_iter_dataset(options))


def with_torch(path: Path, records: int, workers: int) -> Iterator[Any]:
    import torch
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    class Records(torch.utils.data.Dataset):
        source: Any = None

        def __len__(self) -> int:
            return records  # readers are opened in the workers alone

        def __getitems__(self, ids: list[int]) -> list[Any]:
            self.source = self.source or ArrayRecordDataSource([str(path)])
            return [decode([record]) for record in self.source.__getitems__(ids)]

    def stacked(samples: list[dict[str, np.ndarray]]) -> dict[str, Any]:
        keys = samples[0]
        return {
            k: torch.from_numpy(np.concatenate([s[k] for s in samples])) for k in keys
        }

    torch.set_num_threads(1)
    made = torch.utils.data.DataLoader(
        Records(), BATCH, shuffle=True, num_workers=workers, collate_fn=stacked
    )
    return iter(made)


def rate(way: str, path: Path, records: int) -> float:
    """Return samples a second behind the first batch."""
    if way.startswith("torch"):
        batches = with_torch(path, records, int(way.split()[1]))
    else:
        batches = with_grain(path) if way == "grain" else with_jaxdist(path, way)
    next(batches)
    start, steps = time.perf_counter(), records // BATCH - 1
    for _ in range(steps):
        next(batches)
    return steps * BATCH / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", help="a python that has torch and array_record")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    add_record_option(parser)
    given = parser.parse_args()
    if given.child:
        way, path = given.child
        print(json.dumps(rate(way, Path(path), given.records)))
        return
    ways = {**WAYS, **(TORCH if given.torch else {})}
    found: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.array_record"
        write(path, given.records)
        for _ in range(given.rounds):
            for name, way in ways.items():
                python = given.torch if way.startswith("torch") else sys.executable
                command = [python, __file__, "--child", way, str(path)]
                command += ["--records", str(given.records)]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE)
                found[name].append(float(json.loads(out.stdout.splitlines()[-1])))
    base, rows = statistics.median(found["grain, 16 threads"]), []
    for name, rates in found.items():
        middle = statistics.median(rates)
        print(
            f"{name:26} {middle:>9,.0f} samples/s ({min(rates):,.0f} to "
            f"{max(rates):,.0f})   {middle / base:5.2f} x grain"
        )
        n = len(rates)
        rows += [
            row(name, middle, "samples/s", figure="rate", readings=rates),
            row(name, middle / base, "", figure="over grain", n=n),
        ]
    if given.record:
        write_result("input_rate", rows)


if __name__ == "__main__":
    main()
