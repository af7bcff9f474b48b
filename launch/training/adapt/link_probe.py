"""Sounding: what the links and the devices of a run carry, measured between two steps.

Every process exchanges some bytes with every other one, all pairs of a round at once,
and computes a product; a process is in one pair of a round:

    round 1   0-3   1-2        round 2   0-2   3-1        round 3   0-1   2-3

Nothing else is on the links meanwhile: all processes come to it before the same step.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jaxdist.core.cluster import Cluster
from jaxdist.launch.distributed.process_group import ProcessGroup

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh

_AXIS: Final = "host"
_TARGET_S: Final = 0.02
"""What an exchange is to take, by the cluster's numbers."""
_MIN_BYTES: Final = 1 << 18
_MAX_BYTES: Final = 1 << 24
_EXCHANGE_REPEATS: Final = 2
_MATMUL_REPEATS: Final = 40
_MATMUL_SIZE: Final = 384
_GATHER_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, kw_only=True)
class LinkMeasurement:
    """What was measured once."""

    rates: Mapping[tuple[int, int], float]
    """Bytes a second that two processes send each other, each way; lower rank first."""
    products: tuple[float, ...]
    """Seconds that a product took, by rank."""
    hosts: tuple[str, ...]
    """Name of each process's machine, by rank."""


@dataclass(frozen=True, kw_only=True)
class ProcessMeasurement:
    """What one process has measured."""

    rounds: tuple[float, ...]
    """Seconds of its exchange in each round; 0 in one that it sits out."""
    product: float
    """Seconds of a product."""
    host: str = ""
    """Name of its machine."""


def round_robin_pairs(num_processes: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return rounds in which every two of some processes meet once.

    The circle method: one stays, the others go on by one place.

    >>> round_robin_pairs(4)
    (((0, 3), (1, 2)), ((0, 2), (1, 3)), ((0, 1), (2, 3)))
    >>> round_robin_pairs(3)
    (((1, 2),), ((0, 2),), ((0, 1),))
    >>> round_robin_pairs(1)
    ()
    """
    circle: list[int] = list(range(num_processes + num_processes % 2))
    found = []
    for _ in circle[1:]:
        half = len(circle) // 2
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairs = sorted((min(pair), max(pair)) for pair in met)
        found.append(tuple(pair for pair in pairs if pair[1] < num_processes))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return tuple(filter(None, found))


def merge_measurements(
    measurements: Sequence[ProcessMeasurement], message_bytes: int
) -> LinkMeasurement:
    """Return what was measured in all processes, by pairs.

    A pair is as fast as the slower of the two says.

    Args:
        measurements: of each process, by rank.
        message_bytes: bytes that each has sent in a round.

    >>> first = ProcessMeasurement(rounds=(0.5,), product=0.1)
    >>> owns = [first, ProcessMeasurement(rounds=(0.4,), product=0.2)]
    >>> merge_measurements(owns, 100).rates
    {(0, 1): 200.0}
    """
    rates = {
        (one, two): message_bytes
        / max(measurements[one].rounds[at], measurements[two].rounds[at], 1e-9)
        for at, pairs in enumerate(round_robin_pairs(len(measurements)))
        for one, two in pairs
    }
    return LinkMeasurement(
        rates=rates,
        products=tuple(own.product for own in measurements),
        hosts=tuple(own.host for own in measurements),
    )


def probe_message_bytes(cluster: Cluster) -> int:
    """Return the bytes of an exchange: enough to tell a rate, over in a moment."""
    rate = min(level.bandwidth.value for level in cluster.levels)
    return int(min(max(_TARGET_S * rate, _MIN_BYTES), _MAX_BYTES)) // 4 * 4


class LinkProbe:
    """Measures, in all processes of a run at once.

    Args:
        group: the process among those of its run.
        message_bytes: bytes of an exchange.
    """

    def __init__(self, group: ProcessGroup, message_bytes: int) -> None:
        self._mine, self._size, self._number = group, message_bytes, 0
        self._made: _ProbePrograms | None = None

    def __call__(self) -> LinkMeasurement | None:
        """Measure; process 0 gets what all of them have seen, the others nothing."""
        first = self._made is None
        programs = self._made = self._made or _ProbePrograms(
            self._mine.size, self._size
        )
        if first:  # what is compiled and connected is not what is measured
            programs.measure()
        own = programs.measure()
        self._number += 1
        gathered = self._mine.gather(
            f"links/{self._number}", asdict(own), _GATHER_TIMEOUT_S
        )
        if not self._mine.is_primary:
            return None
        owns = [ProcessMeasurement(**fields) for fields in gathered]
        return merge_measurements(owns, self._size)


class _ProbePrograms:
    """What is run: a meeting, a product, and an exchange for each round."""

    def __init__(self, count: int, size: int) -> None:
        import jax

        self._mesh, self._rank = _host_mesh(count), jax.process_index()
        self._pairs = round_robin_pairs(count)
        self._bytes = self._spread(np.zeros(size // 4, np.float32))
        self._meets = self._over(lambda x: jax.lax.psum(x, _AXIS))
        self._one = self._spread(np.ones(1, np.float32))
        self._exchanges = [
            self._over(_pairwise_exchange(pairs)) for pairs in self._pairs
        ]
        mine = self._mesh.devices.flat[self._rank]
        self._square = jax.device_put(
            np.ones((_MATMUL_SIZE, _MATMUL_SIZE), np.float32), mine
        )
        self._multiply = jax.jit(lambda x: x @ x)

    def measure(self) -> ProcessMeasurement:
        """Run all of it, everybody at once."""
        self._timed(self._meets, self._one)
        product = min(
            self._timed(self._multiply, self._square) for _ in range(_MATMUL_REPEATS)
        )
        return ProcessMeasurement(
            rounds=tuple(map(self._round, self._pairs, self._exchanges)),
            product=product,
            host=socket.gethostname(),
        )

    def _round(
        self, pairs: Sequence[tuple[int, int]], exchange: "Callable[..., Any]"
    ) -> float:
        took = []
        for _ in range(_EXCHANGE_REPEATS):
            self._timed(self._meets, self._one)
            took.append(self._timed(exchange, self._bytes))
        return min(took) if any(self._rank in pair for pair in pairs) else 0.0

    @staticmethod
    def _timed(call: "Callable[..., Any]", x: "jax.Array") -> float:
        import jax

        begun = time.perf_counter()
        jax.block_until_ready(call(x))
        return time.perf_counter() - begun

    def _over(self, call: "Callable[[Any], Any]") -> "Callable[..., Any]":
        """Compile a call over one device of each process."""
        import jax
        from jax.sharding import PartitionSpec

        along = PartitionSpec(_AXIS)
        return jax.jit(
            jax.shard_map(call, mesh=self._mesh, in_specs=along, out_specs=along)
        )

    def _spread(self, each: "np.ndarray") -> "jax.Array":
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        place = NamedSharding(self._mesh, PartitionSpec(_AXIS))
        return jax.make_array_from_process_local_data(place, each)


def _host_mesh(count: int) -> "Mesh":
    """Return a mesh of the first device of each process."""
    import jax
    from jax.sharding import Mesh

    first = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([first[rank] for rank in range(count)]), (_AXIS,))


def _pairwise_exchange(pairs: Sequence[tuple[int, int]]) -> "Callable[[Any], Any]":
    """Return a call in which two of a pair hand each other what they have."""
    import jax

    both = [way for one, two in pairs for way in ((one, two), (two, one))]
    return lambda x: jax.lax.ppermute(x, _AXIS, both)
