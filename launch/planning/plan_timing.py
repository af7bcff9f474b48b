"""A process that runs steps of several plans in turn, for `jaxdist plan verify`.

It reads a question as JSON from standard input and writes lines of JSON: one for each
plan that is ready, one for each round, and the answer. A process of its own, since a
search leaves accelerators alone and has no devices.
"""

import json
import sys
import time
from typing import Any, Final

from jaxdist.core.axes import MeshShape
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.devices.prepare import describe_devices, prepare_devices

_ROUND_S: Final = 1.0
"""Seconds that the steps of a plan take in a round, about."""
_STEP_COUNTS: Final = 2, 20
"""Steps of a round, at least and at most."""


class PlanTimer:
    """A plan's compiled step, the state that it moves, and one batch.

    Args:
        experiment: name or file.
        overrides: `key=value`, those of the plan first.

    Raises:
        BadInput: it cannot be run.
    """

    def __init__(self, experiment: str, overrides: list[str]) -> None:
        import jax

        from jaxdist.input.device_feed import train_feed
        from jaxdist.input.registry import open_data
        from jaxdist.launch.training.job.batch_spec import feature_spec, sample_spec
        from jaxdist.launch.training.job.job import make_job
        from jaxdist.meshes.targets.compiler_options import program_options
        from jaxdist.train.program import initial_state, lower_program

        config = resolve_config(experiment, overrides).config
        jax.config.update("jax_enable_x64", config.precision == "float64")
        train, _ = open_data(config.data, feature_spec(config))
        job = make_job(config, config.plan, train)
        layout = job.layout
        self._program = lower_program(layout).compile(program_options(layout))
        self._state, self._done = initial_state(layout), 0
        self.memory_bytes = self._program.memory_bytes
        # One batch for all steps: plans are compared by their steps, not by their
        # input.
        with train_feed(
            train,
            job.order,
            self._program.batch_shardings,
            shapes=layout.padded_shapes(layout.batch_shapes),
            dtypes=sample_spec(job.config, layout),
        ) as feed:
            batch = next(iter(feed))
        self._batch = {key: batch[key] for key in self._program.batch_shardings}
        # The first step sets up links and caches and is not counted; the second says
        # how many make a round.
        self.step_seconds(1)
        self._steps = 1
        took = self.step_seconds(1)
        self._steps = min(max(round(_ROUND_S / took), _STEP_COUNTS[0]), _STEP_COUNTS[1])

    def round_seconds(self) -> float:
        """Return the seconds of a step, over the steps of a round."""
        return self.step_seconds(self._steps)

    def step_seconds(self, steps: int) -> float:
        """Return the seconds of a step, over so many of them."""
        import jax

        from jaxdist.train.metrics import MAX_IN_FLIGHT_STEPS

        metrics: list[Any] = []
        start = time.perf_counter()
        for _ in range(steps):
            # Counted on from round to round: outer steps are due by the number of the
            # step.
            self._done += 1
            done = self._program.run(self._done, self._state, self._batch)
            self._state = done[0]
            metrics.append(done[1])
            # As the loop of training does: no more steps wait than it lets wait.
            jax.block_until_ready(metrics[: max(0, len(metrics) - MAX_IN_FLIGHT_STEPS)])
        jax.block_until_ready(metrics)
        return (time.perf_counter() - start) / steps


def time_plans(asked: dict[str, Any]) -> dict[str, Any]:
    """Run the steps of plans in turn, and return the seconds of each round.

    In turn, so that what else the machine does meets all plans alike.

    Args:
        asked: `experiment`, `plans` (the overrides of each), `devices`, `rounds`.

    Raises:
        BadInput: fewer devices here than a plan needs.
    """
    # As many devices as the largest plan has, along any axis: smaller plans use some.
    mesh = MeshShape(data=asked["devices"])
    prepared = prepare_devices(Plan(mesh=mesh), explicit=True)
    import jax

    timers: list[PlanTimer | None] = []
    refusals: list[str] = []
    for words in asked["plans"]:
        refusal, timer = "", None
        try:
            timer = PlanTimer(asked["experiment"], words)
        except BadInput as error:
            refusal = error.what
        except jax.errors.JaxRuntimeError as error:
            # Out of memory is what XLA says here; any other message is as much a
            # reason not to choose the plan.
            refusal = (str(error).splitlines() or ["XLA refuses it"])[0]
        timers.append(timer)
        refusals.append(refusal)
        _tell({"ready": len(timers)})
    rounds: list[list[float]] = [[] for _ in timers]
    for turn in range(asked["rounds"]):
        for timer, seconds in zip(timers, rounds, strict=True):
            if timer is not None:
                seconds.append(timer.round_seconds())
        _tell({"round": turn + 1})
    return {
        "rounds": rounds,
        "refusals": refusals,
        "memory": [timer and timer.memory_bytes for timer in timers],
        "machine": describe_devices(Plan(mesh=mesh), prepared.platform),
    }


def _tell(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    # Each line at once: the command that asked draws its progress from them.
    sys.stdout.flush()


def main() -> None:
    """Answer the question on standard input."""
    try:
        _tell({"answer": time_plans(json.load(sys.stdin))})
    except BadInput as error:
        parts = {"what": error.what, "rule": error.rule, "values": error.values}
        _tell({"refused": {**parts, "remedy": [*error.remedy]}})


if __name__ == "__main__":
    main()
