"""Learning without a flush: PipeDream's accuracy beside that of synchronous training.

    python benchmarks/without_flush.py --seeds 10
    python benchmarks/without_flush.py --rates 0.8,1.6,3.2 --seeds 3

Handwritten digits on four dense layers (256 wide), minibatches of 64, each way from the
same weights on the same samples in the same order. `synchronous` is one device;
`pipedream` has four stages and a stream of 15 minibatches in a step, with stashed
weights, or without (the backward pass reads the newest), in vertical sync, and with two
versions for all (`pipedream-2bw`: an update for five minibatches, the others one for
each). A difference is the mean over seeds, each way against synchronous training of the
same seed and rate, with its interval of 95 %.
"""

import argparse
import json
import os
import statistics
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("NPROC", str(3 + (os.cpu_count() or 1)))

import jax
from flax import nnx
from scipy.special import stdtrit

from jaxdist.core.object_reference import object_reference
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.input.config import DataConfig
from jaxdist.input.device_feed import train_feed
from jaxdist.input.registry import augmentation_of, open_data
from jaxdist.input.sources import Source
from jaxdist.launch.config import Experiment
from jaxdist.launch.training.evaluate import make_evaluator
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.launch.training.job.job import Job, make_job
from jaxdist.layers import Linear
from jaxdist.models.config import ModelConfig
from jaxdist.models.conv_blocks import Chain
from jaxdist.train.optimizers import OptimConfig
from jaxdist.train.program import compile_program

STAGES, STREAM, BATCH = 4, 15, 64
SIZES = (256, 256, 256, 256, 10)
WAYS = {
    "synchronous": None,
    "pipedream": PipelineConfig(schedule="pipedream"),
    "pipedream, no stashing": PipelineConfig(
        schedule="pipedream", weight_stashing=False
    ),
    "pipedream, vertical sync": PipelineConfig(
        schedule="pipedream", vertical_sync=True
    ),
    "pipedream-2bw": PipelineConfig(
        schedule="pipedream-2bw", microbatches_per_update=5
    ),
}


class Layer(nnx.Module):
    """A dense layer of a flat image, with ReLU but for the last."""

    def __init__(self, inputs, outputs, rngs):
        self.dense, self.last = Linear(inputs, outputs, rngs=rngs), outputs == SIZES[-1]

    def __call__(self, x):
        y = self.dense(x.reshape(x.shape[0], -1))
        return y if self.last else jax.nn.relu(y)


def Net(*, rngs):
    pairs = zip("abcd", SIZES, SIZES[1:])
    return Chain({name: Layer(i, o, rngs) for name, i, o in pairs})


def job_of(way, rate, seed, epochs, momentum) -> tuple[Job, tuple[Source, Source]]:
    """Return the job of one training, and its samples."""
    pipe = WAYS[way]
    times = 1 if pipe is None else STREAM
    plan = Plan() if pipe is None else Plan(mesh=MeshShape(pipe=STAGES), pipe=pipe)
    config = Experiment(
        name="without_flush",
        seed=seed,
        epochs=epochs,
        data=DataConfig(name="digits", batch=BATCH * times, shift=0),
        model=ModelConfig(name=object_reference(Net)),
        optim=OptimConfig(
            lr=rate, momentum=momentum, warmup_epochs=1.0, accumulate=times
        ),
        plan=plan,
    )
    sources = open_data(config.data, feature_spec(config))
    return make_job(config, plan, sources[0]), sources


def trainings(way, rate, seeds, epochs, momentum):
    """Yield the held-out accuracy of each seed; the step is compiled once."""
    job, sources = job_of(way, rate, 0, epochs, momentum)
    program, judge = compile_program(job.layout), make_evaluator(job, sources[1])
    places = jax.tree.map(lambda x: x.sharding, job.layout.state)
    first = jax.jit(job.layout.state_layout.to_device, out_shardings=places)
    for seed in seeds:
        own, _ = job_of(way, rate, seed, epochs, momentum)
        state = first(own.layout.task.init())
        source, data = sources[0], job.config.data
        with train_feed(
            source,
            own.order,
            program.batch_shardings,
            augmentation=augmentation_of(data, source),
        ) as batches:
            for number, batch in zip(range(own.run_schedule.steps), batches):
                state, _ = program.run(number + 1, state, batch)
                jax.block_until_ready(state.step)
        yield 100 * judge(state)["accuracy"]


def interval(values):
    """Return the mean, and half of its interval of 95 %."""
    count = len(values)
    if count < 2:
        return values[0], float("nan")
    student = float(stdtrit(count - 1, 0.975))
    half = student * statistics.stdev(values) / count**0.5
    return statistics.mean(values), half


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="0.1,0.2,0.4")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--momentum", type=float, default=0.9, help="of Nesterov")
    parser.add_argument("--ways", help="of: " + "; ".join(WAYS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="every accuracy")
    args = parser.parse_args()
    ways = args.ways.split("; ") if args.ways else list(WAYS)
    found = {}
    print("| rate | way | held out, % | least to most | against synchronous |")
    print("|---|---|---|---|---|")
    for rate in map(float, args.rates.split(",")):
        for way in ways:
            own = list(
                trainings(way, rate, range(args.seeds), args.epochs, args.momentum)
            )
            found[f"{rate} {way}"] = own
            mean, half = interval(own)
            beside = ""
            if way != ways[0]:
                pairs = zip(own, found[f"{rate} {ways[0]}"], strict=True)
                near, wide = interval([a - b for a, b in pairs])
                beside = f"{near:+.2f} ± {wide:.2f}"
            ends = f"{min(own):.2f} to {max(own):.2f}"
            print(
                f"| {rate} | {way} | {mean:.2f} ± {half:.2f} | {ends} | {beside} |",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
