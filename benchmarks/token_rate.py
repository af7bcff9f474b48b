"""Tokens a second of packed documents: jaxdist beside plain grain and torch.

    python benchmarks/token_rate.py [--rounds 3] [--torch PYTHON]

The documents are the modules of Python's standard library, prepared once; all ways read
the same file, mapped, and make batches of 32 windows of 1,024 tokens with targets and
segments. Each runs in a process of its own, in turn; the first batches are not counted.
Beside the rate stands that of a second of processors, which others on the machine do
not change.
grain and torch put shuffled documents one behind the other and cut that into windows
(grain's `ConcatThenSplitIterDataset`; an iterable data set of torch). jaxdist packs by
best fit; others leave batches on the host, it puts them on the device as well.
"""

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from record import add_record_option, row, write_result

BATCH, WINDOW, SKIPPED, COUNTED = 32, 1024, 10, 150
WAYS = {
    "grain, 16 threads": "grain",
    "jaxdist, host arrays": "host",
    "jaxdist, on the device": "device",
}
TORCH = {"torch, 0 workers": "torch 0", "torch, 2 workers": "torch 2"}


def prepare(folder: Path) -> Path:
    """Write the tokens of the standard library."""
    from jaxdist.input.token_files import prepare_text

    texts = folder / "modules.jsonl"
    with texts.open("w") as file:
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
            if "site-packages" not in path.parts:
                text = path.read_bytes().decode(errors="replace")
                file.write(json.dumps({"text": text}) + "\n")
    return prepare_text(texts, folder / "tokens", vocabulary=2048).folder


class MappedDocuments:
    """Documents of a file of tokens, each behind its end sign."""

    def __init__(self, home: Path) -> None:
        counts = np.load(home / "train.npy")[:, 0] + 1
        self.bounds = np.concatenate([[0], np.cumsum(counts)])
        file = np.memmap(home / "train.tokens", "<u2", "r")
        self.data = file.view(np.ndarray)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: Any) -> Any:
        first, end = self.bounds[number : number + 2]
        return self.data[first:end].astype(np.int32)


def with_jaxdist(home: Path, way: str) -> Iterator[Any]:
    from jaxdist.input import Global, loader
    from jaxdist.input.batch_assembly import TrainBatchAssembler
    from jaxdist.input.local_shuffle.partial import order_from_config
    from jaxdist.input.prefetch import prefetch_batches
    from jaxdist.input.tokens import PackedDocuments

    source = PackedDocuments(home, "train", WINDOW)
    if way == "device":
        return loader(source, global_batch=BATCH)
    # What is put on devices, before it is: as other ways leave it.
    order = order_from_config(Global(), num_samples=len(source), batch=BATCH, seed=0)
    keys = dict.fromkeys(("tokens", "segments", "target", "bytes"), "int32")
    made = TrainBatchAssembler(source=source, order=order, dtypes=keys)
    return prefetch_batches(
        made, np.arange(BATCH), dict, int, start=0, stop=2**31, workers=1
    )


def with_grain(home: Path) -> Iterator[Any]:
    import grain

    data = grain.MapDataset.source(MappedDocuments(home)).seed(0).shuffle().repeat()
    options = grain.ReadOptions(num_threads=16, prefetch_buffer_size=32)
    documents = data.map(lambda tokens: {"tokens": tokens}).to_iter_dataset(options)
    # One more than a window, as targets are the tokens behind; it makes segments too.
    windows = grain.experimental.ConcatThenSplitIterDataset(
        documents, length_struct={"tokens": WINDOW + 1}
    )
    return iter(windows.batch(BATCH))


def with_torch(home: Path, workers: int) -> Iterator[Any]:
    import torch

    class Windows(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            documents, told = MappedDocuments(home), torch.utils.data.get_worker_info()
            first, step = (told.id, told.num_workers) if told else (0, 1)
            draw, rest = np.random.default_rng(0), np.zeros(0, np.int32)
            while True:
                for number in draw.permutation(len(documents))[first::step]:
                    rest = np.concatenate([rest, documents[number]])
                    count = (len(rest) - 1) // WINDOW
                    segments = np.cumsum(rest == 0, dtype=np.int32)
                    for start in range(0, count * WINDOW, WINDOW):
                        end = start + WINDOW
                        yield {
                            "tokens": torch.from_numpy(rest[start:end]),
                            "target": torch.from_numpy(rest[start + 1 : end + 1]),
                            "segments": torch.from_numpy(segments[start:end]),
                        }
                    rest = rest[count * WINDOW :]

    torch.set_num_threads(1)
    made = torch.utils.data.DataLoader(Windows(), BATCH, num_workers=workers)
    return iter(made)


def rates(way: str, home: Path) -> tuple[float, float]:
    """Return tokens a second behind the first batches, and a second of processors."""
    name, _, number = way.partition(" ")
    if name == "grain":
        batches = with_grain(home)
    elif name == "torch":
        batches = with_torch(home, int(number))
    else:
        batches = with_jaxdist(home, name)
    for _ in range(SKIPPED):
        next(batches)
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(COUNTED):
        next(batches)
    tokens = COUNTED * BATCH * WINDOW
    seconds = time.perf_counter() - start, time.process_time() - busy
    return tokens / seconds[0], tokens / seconds[1]


def main() -> None:
    """Measure each way in turn, and print tokens a second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", help="a python that has torch")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    add_record_option(parser)
    given = parser.parse_args()
    if given.child:
        way, home = given.child
        print(json.dumps(rates(way, Path(home))))
        return
    ways = {**WAYS, **(TORCH if given.torch else {})}
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        home = prepare(Path(folder))
        for _ in range(given.rounds):
            for name, way in ways.items():
                python = given.torch if way.startswith("torch") else sys.executable
                command = [python, __file__, "--child", way, str(home)]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE)
                found[name].append(json.loads(out.stdout.splitlines()[-1]))
    rows = []
    for place, (figure, unit) in enumerate(
        (("rate", "M tokens/s"), ("of processors", "M tokens/CPU s"))
    ):
        base = statistics.median(x[place] for x in found["grain, 16 threads"])
        for name, pairs in found.items():
            # Of worker processes a parent counts nothing.
            if place and "workers" in name and "0 workers" not in name:
                continue
            millions = [pair[place] / 1e6 for pair in pairs]
            middle = statistics.median(millions)
            print(
                f"{name:20} {middle:8.2f} {unit:15} ({min(millions):.2f} to "
                f"{max(millions):.2f})   {middle * 1e6 / base:5.2f} x grain"
            )
            over = f"{figure} over grain"
            rows += [
                row(name, middle, unit, figure=figure, readings=millions),
                row(name, middle * 1e6 / base, "", figure=over, n=len(pairs)),
            ]
    if given.record:
        write_result("token_rate", rows)


if __name__ == "__main__":
    main()
