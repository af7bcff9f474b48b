"""What partial shuffling does to accuracy where it matters most: samples by label.

    python benchmarks/partial_shuffle.py [--seeds 5] [--folder FOLDER] [key=value ...]

Ten replicas hold one partition each, of samples sorted by label, so that without an
exchange each sees one class or two. The network has two hidden layers of 64 behind
batch norm, whose statistics are each replica's own, or all replicas'. Runs that are
done are not repeated.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Literal

import jax
from flax import nnx

from jaxdist.core.object_reference import object_reference
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.shuffle import ShuffleConfig
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.layers import BatchNorm, Linear
from jaxdist.models.config import ModelConfig
from jaxdist.models.conv_blocks import Chain
from jaxdist.train.optimizers import OptimConfig

PARTS = ("none", "0", "0.1", "0.3", "1")


class Hidden(nnx.Module):
    """Flattens, then a dense layer, batch norm and ReLU."""

    def __init__(self, features, shared, rngs):
        self.dense, self.norm = Linear(*features, rngs=rngs), BatchNorm(64, rngs=rngs)
        self.norm.statistics = shared

    def __call__(self, x):
        return jax.nn.relu(self.norm(self.dense(x.reshape(x.shape[0], -1))))


def chain(shared: Literal["global", "replica"], rngs: nnx.Rngs, pixels: int) -> Chain:
    blocks = {
        "first": Hidden((pixels, 64), shared, rngs),
        "second": Hidden((64, 64), shared, rngs),
        "head": Linear(64, 10, rngs=rngs),
    }
    return Chain(blocks)


def Own(*, rngs: nnx.Rngs) -> Chain:
    return chain("replica", rngs, 256)


def All(*, rngs: nnx.Rngs) -> Chain:
    return chain("global", rngs, 256)


def _experiment(name: str, network: str) -> Experiment:
    return Experiment(
        name=name,
        epochs=10,
        data=DataConfig(name="digits", batch=120, shift=0, order="label"),
        model=ModelConfig(name=network),
        optim=OptimConfig(lr=0.1),
        plan=Plan(
            mesh=MeshShape(data=10),
            shuffle=ShuffleConfig(exchange_fraction=0.1, partitions=10),
        ),
    )


def replica() -> Experiment:
    """Train with batch statistics of each replica's own samples."""
    return _experiment("replica", object_reference(Own))


def shared() -> Experiment:
    """Train with batch statistics of the whole batch."""
    return _experiment("shared", object_reference(All))


def accuracy(folder: Path, which: str, q: str, seed: int, words: list[str]) -> float:
    """Train once, or read what an earlier call has trained."""
    name = f"{which}-{q}-{seed}"
    summary = folder / name / "summary.json"
    if not summary.exists():
        command = [sys.executable, "-m", "jaxdist.launch", "train"]
        command += [f"{__file__}:{which}", f"run.dir={folder}", f"run.name={name}"]
        command += [f"seed={seed}", f"plan.shuffle.exchange_fraction={q}", *words]
        subprocess.run(command, check=True, capture_output=True)
    return float(json.loads(summary.read_text())["accuracy"])


def main() -> None:
    # Runs read this file as an experiment, from another folder: not at its top.
    from record import add_record_option, row, write_result

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/partial_shuffle"))
    parser.add_argument("words", nargs="*", metavar="key.sub=value")
    add_record_option(parser)
    given, rows = parser.parse_args(), []
    names = {"replica": "statistics of each replica", "shared": "of the whole batch"}
    print("statistics   q     held out, mean (least to most)")
    for which in ("replica", "shared"):
        for q in PARTS:
            found = [
                100 * accuracy(given.folder, which, q, seed, given.words)
                for seed in range(given.seeds)
            ]
            low, mean, high = min(found), statistics.mean(found), max(found)
            print(f"{which:10}  {q:4}  {mean:6.2f} % ({low:.1f} to {high:.1f})")
            case = "global" if q == "none" else f"Q = {q}"
            rows.append(row(case, mean, "%", figure=names[which], readings=found))
    if given.record:
        write_result("partial_shuffle", rows)


if __name__ == "__main__":
    main()
