"""A host of `predicted.py`: runs the steps of many plans in turn, in rounds."""

import json
import sys
import time

import jax
import numpy as np
from jax.sharding import AxisType

from jaxdist.calibrate.together import slowest
from jaxdist.input.feed import train_feed
from jaxdist.input.registry import open_data
from jaxdist.launch.job import make_job
from jaxdist.launch.joined import join
from jaxdist.launch.resolve import resolve
from jaxdist.launch.samples import wanted
from jaxdist.train.loop import AHEAD
from jaxdist.train.program import compile_program, initial_state


class Runner:
    """A plan's compiled step, the state that it moves, and one batch."""

    def __init__(self, experiment, words):
        config = resolve(experiment, words).config
        train, _ = open_data(config.data, wanted(config))
        job = make_job(config, config.plan, train)
        layout = job.layout
        self.program = compile_program(layout)
        self.state, self.done = initial_state(layout), 0
        feed = train_feed(
            train,
            job.order,
            self.program.batch,
            shapes=layout.padded(layout.shapes),
            dtypes=layout.task.objective.dtypes,
        )
        batch = next(iter(feed))
        self.batch = {key: batch[key] for key in self.program.batch}
        feed.close()

    def seconds(self, steps):
        """Return the seconds of a step, as the loop of training makes them."""
        losses, start = [], time.perf_counter()
        for _ in range(steps):
            self.done += 1
            self.state, loss = self.program.run(self.done, self.state, self.batch)
            losses.append(loss)
            jax.block_until_ready(losses[: max(0, len(losses) - AHEAD)])
        jax.block_until_ready(losses)
        return (time.perf_counter() - start) / steps


def main(plans, rounds, steps):
    join()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    runners = []
    for experiment, words in plans:
        start = time.perf_counter()
        runners.append(Runner(experiment, words))
        runners[-1].seconds(1)
        took = time.perf_counter() - start
        print(f"{experiment} {words}: {took:.1f} s", file=sys.stderr)
    meet = slowest(mesh, np.zeros(1, np.float32))
    found = np.zeros((len(runners), rounds), np.float32)
    for turn in range(rounds):
        for place, runner in enumerate(runners):
            runner.seconds(1)  # connections are awake again
            meet()
            found[place, turn] = runner.seconds(steps)
    print(json.dumps(slowest(mesh, found)().tolist()))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
