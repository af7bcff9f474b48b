"""A table that a benchmark of links printed: one program, so many ranks."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxdist.calibrate.alpha_beta_fit import MIN_SIZES, CollectiveTiming
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class BenchmarkTable:
    """One run of one program."""

    suite: str
    """`nccl-tests` or `OSU`."""
    program: str
    """As it is started: `all_reduce_perf`."""
    source: str
    """Name of the file."""
    ranks: int
    """That took part, one device each."""
    hosts: tuple[str, ...] = ()
    """On which they were, each once; none where that is not printed."""
    sizes: tuple[int, ...]
    """Bytes in the first column, one for each timing."""
    timings: tuple[CollectiveTiming, ...]
    """With the bytes of the result on one device."""
    is_serialized: bool = True
    """Whether the next message waits for the last; else the start of one is hidden."""
    is_verified: bool
    """Whether the program looked at its results."""

    def __post_init__(self) -> None:
        _check_table(self)

    @property
    def sized_timings(self) -> tuple[tuple[int, CollectiveTiming], ...]:
        """Timings, each with its bytes in the first column."""
        return tuple(zip(self.sizes, self.timings, strict=True))

    @property
    def provenance(self) -> str:
        """What the numbers that come of it are called."""
        return f"{self.suite} {self.program}, {self.source}"


def result_bytes(kind: str, size: int, ranks: int, is_total: bool) -> int:
    """Return the bytes of a result on one device.

    Args:
        kind: of the collective, as the compiler names it.
        size: in the first column.
        ranks: that take part.
        is_total: whether the column has the longer of the two sides, all ranks' parts
            together (nccl-tests), or one rank's part (OSU's gather and all-to-all).

    >>> result_bytes("all-gather", 64, 4, is_total=False)
    256
    """
    if kind == "reduce-scatter":
        return size // ranks
    if is_total or kind in ("all-reduce", "collective-permute"):
        return size
    return size * ranks


def parse_number(cell: str, line: str, source: str) -> float:
    """Read a cell of a table.

    Raises:
        BadInput: it is none.
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
    """Return the refusal of timings of something that was computed wrong."""
    return BadInput(
        f"{source} has wrong results",
        rule="what is wrong is not timed: its bytes may not have been sent",
        values=what,
        remedy="mend the links or the library, and measure again",
    )


def check_same_ranks(tables: Iterable[BenchmarkTable]) -> None:
    """Refuse tables of different ranks: one line does not go through both.

    Raises:
        BadInput: numbers of ranks, or their hosts, differ.
    """
    first, *others = tables
    for one in others:
        if (one.ranks, set(one.hosts)) != (first.ranks, set(first.hosts)):
            told = (f"{t.provenance}: {_format_ranks(t)}" for t in (first, one))
            raise BadInput(
                "the tables are of different ranks",
                rule="one fit is of one set of ranks",
                values="; ".join(told),
                remedy="one after the other, each with its --level and --cluster of "
                "the one before",
            )
        if one.is_serialized != first.is_serialized:
            raise BadInput(
                "osu_bw is read alone",
                rule="it keeps a window of messages in flight, so that it says nothing "
                "of what a message takes, and the others do",
                values=f"{first.provenance} and {one.provenance}",
                remedy="first the others, then osu_bw with --cluster of what was made",
            )


def _format_ranks(table: BenchmarkTable) -> str:
    return f"{table.ranks} ranks" + f" on {', '.join(table.hosts)}" * bool(table.hosts)


def _check_table(table: BenchmarkTable) -> None:
    """Refuse what no line goes through."""
    if table.ranks < 2:
        raise BadInput(
            f"{table.source} is of one rank",
            rule="links are between two ranks at least",
            values=f"{table.ranks} ranks",
            remedy="mpirun -n 8 all_reduce_perf -g 1, or all_reduce_perf -g 8",
        )
    if len(set(table.sizes)) < MIN_SIZES:
        raise BadInput(
            f"{table.source} has too few sizes",
            rule=f"{MIN_SIZES} sizes at least, small and large",
            values=f"{table.program}: {', '.join(map(str, sorted(set(table.sizes))))}",
            remedy=(
                "all_reduce_perf -b 1K -e 1G -f 2",
                "osu_allreduce -m 1024:67108864",
            ),
        )
    for size, one in table.sized_timings:
        if not one.seconds > 0:
            raise BadInput(
                f"{table.source} has a time of nothing",
                rule="every time is above 0",
                values=f"{size:,} B in {one.seconds:g} s",
                remedy="larger sizes, or more iterations",
            )
