"""A host of `executed.py`: runs the steps of many plans in turn, in rounds."""

import json
import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax._src import cache_key
from jax.sharding import AxisType

from jaxdist.calibrate.synchronized_timing import max_over_processes
from jaxdist.input.device_feed import train_feed
from jaxdist.input.registry import open_data
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.devices.jax_environment import retain_freed_memory
from jaxdist.launch.distributed import initialize
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.launch.training.job.job import make_job
from jaxdist.train.metrics import MAX_IN_FLIGHT_STEPS
from jaxdist.train.program import compile_program, initial_state

SHARED_S = 300
"""Seconds that a process waits for what another one compiles."""
STEPS = 2, 10
"""Steps of a round, at least and at most."""


def share():
    """Let the first process compile for all: their devices are of one kind.

    JAX sends what one process compiled to the others where they agree on a name for
    it. A part of that name is a fingerprint of the CPUs' topology, which says whose
    process a device is and so is another one in each.
    """
    vars(cache_key)["_hash_accelerator_config"] = cache_key._hash_devices
    jax.config.update("jax_share_binary_between_hosts", True)
    jax.config.update("jax_share_binary_between_hosts_timeout_ms", 1000 * SHARED_S)


class Runner:
    """A plan's compiled step, the state that it moves, and one batch."""

    def __init__(self, experiment, words):
        config = resolve_config(experiment, words).config
        train, _ = open_data(config.data, feature_spec(config))
        job = make_job(config, config.plan, train)
        layout = job.layout
        self.program = compile_program(layout)
        self.state, self.done = initial_state(layout), 0
        feed = train_feed(
            train,
            job.order,
            self.program.batch_shardings,
            shapes=layout.padded_shapes(layout.batch_shapes),
            dtypes=layout.task.objective.dtypes,
        )
        batch = next(iter(feed))
        self.batch = {key: batch[key] for key in self.program.batch_shardings}
        feed.close()

    def seconds(self, steps):
        """Return the seconds of a step, as the loop of training makes them."""
        done, start = [], time.perf_counter()
        for _ in range(steps):
            self.done += 1
            self.state, metrics = self.program.run(self.done, self.state, self.batch)
            done.append(metrics)
            jax.block_until_ready(done[: max(0, len(done) - MAX_IN_FLIGHT_STEPS)])
        jax.block_until_ready(done)
        return (time.perf_counter() - start) / steps


def measured(runners: list[Runner], rate, meet, mesh, rounds, seconds):
    """Return the seconds of a step, [plan, round]."""
    found = np.zeros((len(runners), rounds), np.float32)
    steps = counts(runners, mesh, seconds)
    for turn in range(rounds):
        for place, runner in enumerate(runners):
            runner.seconds(1)  # connections are awake again
            meet()
            found[place, turn] = runner.seconds(steps[place])
    print(f"{rate}: {found.mean(1).round(3).tolist()}", file=sys.stderr, flush=True)
    return found


def counts(runners: list[Runner], mesh, seconds):
    """Return how many steps of each plan take about so long; alike everywhere."""
    took = np.array([runner.seconds(1) for runner in runners], np.float32)
    return (
        np.clip(seconds / max_over_processes(mesh, took)(), *STEPS).astype(int).tolist()
    )


def have(rate, folder, meet):
    """Ask for another rate of all links, and wait for it."""
    if jax.process_index() == 0:
        (folder / "asked").write_text(rate)
    given = folder / "given"
    while not given.exists() or given.read_text() != rate:
        time.sleep(0.1)
    meet()


def main(experiment, words, folder, rates, rounds, seconds):
    retain_freed_memory()  # as `jaxdist train` does
    share()
    initialize()
    folder = Path(folder)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    runners = []
    for plan in json.loads((folder / "plans.json").read_text()):
        start = time.perf_counter()
        runners.append(Runner(experiment, [*words, *plan]))
        runners[-1].seconds(1)
        took = time.perf_counter() - start
        print(f"{experiment} {plan}: {took:.1f} s", file=sys.stderr, flush=True)
    meet = max_over_processes(mesh, np.zeros(1, np.float32))
    found = []
    for rate in rates:
        have(rate, folder, meet)
        found.append(measured(runners, rate, meet, mesh, rounds, seconds))
    print(json.dumps(max_over_processes(mesh, np.stack(found))().tolist()))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
