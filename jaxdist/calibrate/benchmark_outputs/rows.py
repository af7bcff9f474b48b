"""A table printed by a link benchmark: timings of one program on one set of ranks."""

from dataclasses import dataclass

from jaxdist.calibrate.alpha_beta_fit import MIN_SIZES, CollectiveTiming
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class BenchmarkTable:
    """Timings of one run of one program, by message size.

    Raises:
        BadInput: one rank, too few sizes or a time of 0: no line can be fitted.
    """

    suite: str
    """`nccl-tests` or `OSU`."""
    program: str
    """Name of the executable: `all_reduce_perf`."""
    source: str
    """Name of the file."""
    ranks: int
    """Number of ranks, one device each."""
    hosts: tuple[str, ...] = ()
    """Hosts of the ranks, each once; empty where they are not printed."""
    sizes: tuple[int, ...]
    """Bytes in the first column, one for each timing."""
    timings: tuple[CollectiveTiming, ...]
    """Timings, with the bytes of the result on one device."""
    is_serialized: bool = True
    """Whether a message waits for the one before; else start-up times overlap."""
    is_verified: bool
    """Whether the program checked its results."""

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise BadInput(
                f"{self.source} is of one rank",
                rule="links are between two ranks at least",
                values=f"{self.ranks} ranks",
                remedy="mpirun -n 8 all_reduce_perf -g 1, or all_reduce_perf -g 8",
            )
        # A line has two parameters; a third size is what shows how well it fits.
        distinct = sorted(set(self.sizes))
        if len(distinct) < MIN_SIZES:
            raise BadInput(
                f"{self.source} has too few sizes",
                rule=f"{MIN_SIZES} sizes at least, small and large",
                values=f"{self.program}: {', '.join(map(str, distinct))}",
                remedy=(
                    "all_reduce_perf -b 1K -e 1G -f 2",
                    "osu_allreduce -m 1024:67108864",
                ),
            )
        # Rounded to 0, or NaN; fits divide by it.
        for size, timing in self.sized_timings:
            if not timing.seconds > 0:
                raise BadInput(
                    f"{self.source} has a time of nothing",
                    rule="every time is above 0",
                    values=f"{size:,} B in {timing.seconds:g} s",
                    remedy="larger sizes, or more iterations",
                )

    @property
    def sized_timings(self) -> tuple[tuple[int, CollectiveTiming], ...]:
        """Timings, each with its bytes in the first column."""
        return tuple(zip(self.sizes, self.timings, strict=True))

    @property
    def provenance(self) -> str:
        """Origin of the numbers derived from the table."""
        return f"{self.suite} {self.program}, {self.source}"


def result_bytes(kind: str, size: int, ranks: int, is_total: bool) -> int:
    """Return the bytes of a collective's result on one device.

    Args:
        kind: kind of collective, as in HLO.
        size: bytes in the first column of the table.
        ranks: number of ranks.
        is_total: whether `size` is the longer of the two sides, all ranks' parts
            together (nccl-tests), or one rank's part (OSU's gather and all-to-all).

    >>> result_bytes("all-gather", 64, 4, is_total=False)
    256
    """
    # HLO counts the result: a part of a reduce-scatter's input, the whole of a
    # gather's.
    if kind == "reduce-scatter":
        return size // ranks
    if is_total or kind in ("all-reduce", "collective-permute"):
        return size
    return size * ranks


def parse_number(cell: str, line: str, source: str) -> float:
    """Parse a cell of a table.

    Raises:
        BadInput: the cell is not a number.
    """
    try:
        return float(cell)
    except ValueError:
        raise BadInput(
            f"{source} has a row that cannot be read",
            rule="under the head of a table are rows of numbers",
            values=f"{cell!r} in: {' '.join(line.split())}"[:100],
            remedy="the output as the program prints it, without --json or -J",
        ) from None


def wrong_results_error(source: str, what: str) -> BadInput:
    """Return the error for timings whose results failed verification."""
    return BadInput(
        f"{source} has wrong results",
        rule="what is wrong is not timed: its bytes may not have been sent",
        values=what,
        remedy="mend the links or the library, and measure again",
    )
