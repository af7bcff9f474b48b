"""The link probe: what the links and devices of a run carry, measured between steps.

Every process exchanges some bytes with every other one, all pairs of a round at once,
and computes a product; a process is in one pair of a round:

    round 1   0-3   1-2        round 2   0-2   3-1        round 3   0-1   2-3

Nothing else is on the links meanwhile: all processes come to it before the same step.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jaxdist.core.cluster import Cluster
from jaxdist.core.records import parse_record
from jaxdist.launch.distributed.process_group import ProcessGroup

if TYPE_CHECKING:
    import jax

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
    """The links and devices of a run, measured once."""

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
        # With an odd number one place is empty, and who meets it sits the round out.
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
    # The slowest link sets the size: long enough that its latency does not count, and
    # short enough that nobody notices a pause in training.
    rate = min(level.bandwidth.value for level in cluster.levels)
    # Whole numbers of float32, which is what is sent.
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
        if first:  # compiling and connecting must not be measured
            programs.measure()
        own = programs.measure()
        self._number += 1
        # A name of the group is used once, so each measurement has one of its own.
        gathered = self._mine.gather(
            f"links/{self._number}", asdict(own), _GATHER_TIMEOUT_S
        )
        if not self._mine.is_primary:
            return None
        # Another process may be of another version.
        owns = [
            parse_record(ProcessMeasurement, fields, f"what process {rank} measured")
            for rank, fields in enumerate(gathered)
        ]
        return merge_measurements(owns, self._size)


class _ProbePrograms:
    """The programs that are timed: a meeting, a product, and a round's exchanges."""

    def __init__(self, count: int, size: int) -> None:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        # One device of each process is enough: all of them share the host's links. The
        # first one wins, since later ones come first in the reversed list.
        first = {device.process_index: device for device in reversed(jax.devices())}
        mesh = Mesh(np.array([first[rank] for rank in range(count)]), (_AXIS,))
        along, self._rank = PartitionSpec(_AXIS), jax.process_index()
        place = NamedSharding(mesh, along)
        zeros, one = np.zeros(size // 4, np.float32), np.ones(1, np.float32)
        self._bytes = jax.make_array_from_process_local_data(place, zeros)
        self._one = jax.make_array_from_process_local_data(place, one)
        square = np.ones((_MATMUL_SIZE, _MATMUL_SIZE), np.float32)
        self._square = jax.device_put(square, mesh.devices.flat[self._rank])
        self._multiply = jax.jit(lambda x: x @ x)

        # The sum makes all processes meet, so that an exchange begins everywhere at
        # once. In an exchange the two of each pair send each other what they have.
        # By jax's own exchange, as in a step: sockets of ours would need ports, and say
        # nothing of NCCL.
        self._pairs = round_robin_pairs(count)
        calls: list[Callable[[Any], Any]] = [lambda x: jax.lax.psum(x, _AXIS)]
        for pairs in self._pairs:
            both = [way for one, two in pairs for way in ((one, two), (two, one))]
            calls.append(partial(jax.lax.ppermute, axis_name=_AXIS, perm=both))
        self._meets, *self._exchanges = (
            jax.jit(jax.shard_map(call, mesh=mesh, in_specs=along, out_specs=along))
            for call in calls
        )

    def measure(self) -> ProcessMeasurement:
        """Run all of it, in all processes at once."""
        self._timed(self._meets, self._one)
        # The fastest of several is what the hardware can do; the rest was disturbed.
        product = min(
            self._timed(self._multiply, self._square) for _ in range(_MATMUL_REPEATS)
        )
        rounds = []
        for pairs, exchange in zip(self._pairs, self._exchanges, strict=True):
            took = []
            for _ in range(_EXCHANGE_REPEATS):
                self._timed(self._meets, self._one)
                took.append(self._timed(exchange, self._bytes))
            # Every process runs the program of a round, also one that sits it out.
            is_in = any(self._rank in pair for pair in pairs)
            rounds.append(min(took) if is_in else 0.0)
        return ProcessMeasurement(
            rounds=tuple(rounds), product=product, host=socket.gethostname()
        )

    @staticmethod
    def _timed(call: "Callable[..., Any]", x: "jax.Array") -> float:
        import jax

        # jax returns before a program has ended: only what is waited for is timed.
        begun = time.perf_counter()
        jax.block_until_ready(call(x))
        return time.perf_counter() - begun
