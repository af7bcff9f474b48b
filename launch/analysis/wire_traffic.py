"""Runs a step on emulated hosts, and reads the bytes that their interfaces count."""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.namespaces import check_netns_support

_MAX_HOSTS: Final = 16
_STEPS: Final = 3
_TIMEOUT_S: Final = 600


@dataclass(frozen=True, kw_only=True)
class WireTraffic:
    """Bytes that the interfaces of emulated hosts counted."""

    host_bytes: tuple[int, ...]
    """Bytes of a step that each host sent, headers included: the least of several.

    A busy host drops frames, which TCP sends again."""

    @property
    def mean_bytes(self) -> float:
        """Bytes that a host sends in a step, on average over the hosts."""
        return statistics.mean(self.host_bytes)


def check_wire_traffic(plan: Plan) -> None:
    """Refuse what emulated hosts cannot count.

    Raises:
        BadInput: one device, too many, replicas that talk between steps, or no hosts
            can be made here.
    """
    devices = plan.mesh.devices
    # The least of some steps would miss the step in which replicas meet.
    if plan.replicas > 1:
        raise BadInput(
            "hosts count a step, and replicas do not talk in one",
            rule="bytes are counted on links where every step moves the same",
            values=f"plan.mesh.replica = {plan.replicas}, "
            f"plan.outer.sync_interval = {plan.outer.sync_interval}",
            remedy="jaxdist bytes without --wire",
        )
    # A single host sends nothing, and each host is a process with jax of its own.
    if not 2 <= devices <= _MAX_HOSTS:
        raise BadInput(
            "there is nothing to count on links",
            rule=f"a device is a host of its own, and there are 2 to {_MAX_HOSTS} "
            "hosts",
            values=f"the plan has {devices} device{'s' * (devices != 1)}",
            remedy="plan.mesh.data=4",
        )
    check_netns_support()


def measure_wire_traffic(command_args: Sequence[str], devices: int) -> WireTraffic:
    """Run a step of an experiment several times, one host a device, and count.

    The batch is zeros and the weights are thrown away: bytes depend on shapes alone.

    Args:
        command_args: EXPERIMENT and its overrides.
        devices: number of devices of its plan.

    Raises:
        BadInput: no hosts can be made here.
        ProcessesFailed: a host failed.
    """
    # With segmentation offload the kernel cuts packets of up to 64 KiB after it has
    # counted them, and so counts too few headers.
    with EmulatedCluster(devices, disable_gso=True) as hosts:
        # This module is the program of each host: see its end.
        worker = (sys.executable, "-m", __name__, *command_args)
        done = hosts.run(worker, timeout=_TIMEOUT_S)
    return WireTraffic(
        host_bytes=tuple(int(each.stdout.splitlines()[-1]) for each in done)
    )


def _measure_host(command_args: Sequence[str]) -> int:
    """Run as one of the hosts, and return the bytes that it sends in a step."""
    from jaxdist.launch.distributed import initialize
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.training.job.request import JobRequest
    from jaxdist.launch.training.job.setup import settle

    # jax.distributed must be initialized before anything asks for devices.
    initialize()
    request = JobRequest(experiment=command_args[0], overrides=command_args[1:])
    job = settle(request, process_group())
    import jax
    import jax.numpy as jnp

    from jaxdist.launch.testbed.traffic_counter import TrafficCounter
    from jaxdist.train.program import compile_program, initial_state

    program, layout = compile_program(job.layout), job.layout
    shapes = layout.padded_shapes(layout.batch_shapes)
    state = initial_state(layout)

    def zeros() -> Any:
        return {key: jnp.zeros(s.shape, s.dtype) for key, s in shapes.items()}

    # Made by a program on all hosts, since no host could write the others' shards.
    batch = jax.jit(zeros, out_shardings=dict(program.batch_shardings))()

    def step() -> Any:
        nonlocal state
        state, metrics = program.compiled_step(state, batch)
        return metrics

    # The first step opens connections; the counted ones find them open.
    jax.block_until_ready(step())
    counter = TrafficCounter(jax.make_mesh((jax.device_count(),), ("host",)))
    sent = [counter.measure(step).tx_bytes for _ in range(_STEPS)]
    return min(sent)


if __name__ == "__main__":
    sys.stdout.write(f"{_measure_host(sys.argv[1:])}\n")
