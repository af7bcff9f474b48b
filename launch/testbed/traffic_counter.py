"""The bytes that a call of a program on several hosts sends, and its time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdist.launch.testbed.link_shaping import read_local_counters

_QUIET_S: Final = 0.15


@dataclass(frozen=True, kw_only=True)
class CallTraffic:
    """One call, seen from one host."""

    seconds: float
    """From when all hosts were ready until the result was here."""
    tx_bytes: int
    """Bytes that this host's interface sent, headers included."""
    tx_payload_bytes: int
    """The same without headers, where packets are not merged before they are sent."""


def shard_local_arrays(
    mesh: Mesh, array_of_rank: Callable[[int], np.ndarray]
) -> jax.Array:
    """Place an array of each host's own on its device.

    Args:
        mesh: one device a host.
        array_of_rank: the array [n, ...] of a rank.

    Returns:
        The array [hosts x n, ...], its first dim split over all axes.
    """
    place = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    # Each process gives its own part alone: nothing travels.
    return jax.make_array_from_process_local_data(
        place, array_of_rank(jax.process_index())
    )


class TrafficCounter:
    """Reads this host's interface around calls that all hosts make at once.

    Args:
        mesh: one device a host.
        quiet_s: seconds until a link is quiet.
    """

    def __init__(self, mesh: Mesh, quiet_s: float = _QUIET_S) -> None:
        axes, self._quiet_s = mesh.axis_names, quiet_s
        along = PartitionSpec(axes)
        self._ones = shard_local_arrays(mesh, lambda rank: np.ones(1, np.float32))
        # A sum over all devices ends nowhere before every host has entered it.
        self._sum = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.psum(x, axes),
                mesh=mesh,
                in_specs=along,
                out_specs=along,
            )
        )

    def barrier(self) -> None:
        """Return when all hosts have come here."""
        jax.block_until_ready(self._sum(self._ones))

    def measure(self, call: Callable[[], Any]) -> CallTraffic:
        """Make a call, which has been made before so that it is compiled.

        Args:
            call: returns arrays that are waited for.
        """
        self.barrier()
        # The links fall quiet before and after: late acknowledgements would be counted
        # with the next call.
        time.sleep(self._quiet_s)
        before, start = read_local_counters(), time.perf_counter()
        # Calls return before the devices have finished.
        jax.block_until_ready(call())
        seconds = time.perf_counter() - start
        # A send returns when the bytes are in the kernel. A receiver that waits for a
        # processor leaves them there: they have gone once every host has its result.
        self.barrier()
        time.sleep(self._quiet_s)
        sent = read_local_counters() - before
        return CallTraffic(
            seconds=seconds,
            tx_bytes=sent.tx_bytes,
            tx_payload_bytes=sent.tx_payload_bytes,
        )
