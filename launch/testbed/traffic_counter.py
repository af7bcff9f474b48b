"""The gauge: what a call of a joined program sends, and how long it takes."""

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
    """From the moment all hosts were ready until the result was here."""
    tx_bytes: int
    """Bytes that this host's interface sent, headers included."""


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
    return jax.make_array_from_process_local_data(
        place, array_of_rank(jax.process_index())
    )


class TrafficCounter:
    """Reads this host's interface around calls that all hosts make at once.

    Before and after each call the links fall quiet: late acknowledgements belong to
    nobody else's call.

    Args:
        mesh: one device a host.
        quiet_s: seconds until a link is quiet.
    """

    def __init__(self, mesh: Mesh, quiet_s: float = _QUIET_S) -> None:
        self._barrier, self._quiet_s = _make_barrier(mesh), quiet_s

    def barrier(self) -> None:
        """Return when all hosts have come here."""
        self._barrier()

    def measure(self, call: Callable[[], Any]) -> CallTraffic:
        """Make a call, which has been made before so that it is compiled.

        Args:
            call: returns arrays that are waited for.
        """
        self.barrier()
        time.sleep(self._quiet_s)
        before, start = read_local_counters(), time.perf_counter()
        jax.block_until_ready(call())
        seconds = time.perf_counter() - start
        time.sleep(self._quiet_s)
        return CallTraffic(
            seconds=seconds, tx_bytes=(read_local_counters() - before).tx_bytes
        )


def _make_barrier(mesh: Mesh) -> Callable[[], Any]:
    """Return a call that ends when all hosts have come to it."""
    axes = mesh.axis_names
    along = PartitionSpec(axes)
    add = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x, axes), mesh=mesh, in_specs=along, out_specs=along
        )
    )
    ones = shard_local_arrays(mesh, lambda rank: np.ones(1, np.float32))
    return lambda: jax.block_until_ready(add(ones))
