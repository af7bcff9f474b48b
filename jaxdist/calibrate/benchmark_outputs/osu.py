"""Output of the OSU micro-benchmarks: a title, then sizes with microseconds or MB/s.

    # OSU MPI Allreduce Latency Test v7.4
    # Datatype: MPI_INT.
    # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
    4                       5.31              4.87              6.02        1000

The second column is read, which is the average; ranks are not printed. A size is one
rank's part in `osu_allgather` and `osu_alltoall`, and all ranks' together in
`osu_reduce_scatter`. MB are 10^6 bytes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from jaxdist.calibrate.alpha_beta_fit import CollectiveTiming
from jaxdist.calibrate.benchmark_outputs.rows import (
    BenchmarkTable,
    parse_number,
    result_bytes,
    wrong_results_error,
)
from jaxdist.core.errors import BadInput

OSU_PROGRAMS: Final = {
    "osu_allreduce": ("Allreduce Latency", "all-reduce"),
    "osu_allgather": ("Allgather Latency", "all-gather"),
    "osu_reduce_scatter": ("Reduce_scatter Latency", "reduce-scatter"),
    "osu_alltoall": ("All-to-All Personalized Exchange Latency", "all-to-all"),
    "osu_latency": ("Latency", "collective-permute"),
    "osu_bw": ("Bandwidth", "collective-permute"),
}
"""Programs that are read, their titles, and what they measure."""
_TITLE_PATTERN: Final = re.compile(r"^\s*#\s*OSU\s+(?P<what>.+?)\s+Test\b")
_TRANSPORT_PATTERN: Final = re.compile(
    r"^[A-Za-z]+(-\S+)?\s+"
)  # "MPI-CUDA ", not "MPI_Get "
_TITLES: Final = {name: title for name, (title, _) in OSU_PROGRAMS.items()}
_POINT_TO_POINT: Final = ("osu_latency", "osu_bw")


def matches(text: str) -> bool:
    """Return whether an OSU benchmark printed that."""
    return any(map(_TITLE_PATTERN.match, text.splitlines()))


def read(
    text: str, source: str, ranks: int | None, program: str | None
) -> list[BenchmarkTable]:
    """Read what was printed, one table for each title.

    Args:
        text: all of it, with whatever else the log has.
        source: name of the file.
        ranks: that took part; two in `osu_latency` and `osu_bw`.
        program: whose tables are read; all of them without.

    Raises:
        BadInput: a benchmark that is not read, no ranks, wrong results.
    """
    runs = _split_runs(text)
    if program is None:
        return [_parse_run(one, source, ranks) for one in runs]
    taken = [one for one in runs if _TITLES.get(program) == one.title]
    if not taken:
        there = [name for name, said in _TITLES.items() if said in _run_titles(runs)]
        raise BadInput(
            f"{source} has no table of {program}",
            rule=f"it has {', '.join(there) or 'none that is read'}",
            values=f"--program {program}",
            remedy=f"--program {there[0]}"
            if there
            else f"one of {', '.join(OSU_PROGRAMS)}",
        )
    return [_parse_run(one, source, ranks) for one in taken]


@dataclass
class _Run:
    """Lines below one title."""

    title: str
    lines: list[str] = field(default_factory=list)


def _split_runs(text: str) -> list[_Run]:
    found: list[_Run] = []
    for line in text.splitlines():
        title = _TITLE_PATTERN.match(line)
        if title:
            found.append(_Run(_TRANSPORT_PATTERN.sub("", title["what"])))
        elif found:
            found[-1].lines.append(line)
    return found


def _run_titles(runs: list[_Run]) -> list[str]:
    return [one.title for one in runs]


def _parse_run(run: _Run, source: str, ranks: int | None) -> BenchmarkTable:
    program, kind = _program_of_title(run.title, source)
    count = _resolve_ranks(program, source, ranks)
    rows = list(_iter_rows(run.lines, source))
    taken = [(size, told) for size, told, _ in rows if program != "osu_bw" or told > 0]
    return BenchmarkTable(
        suite="OSU",
        program=program,
        source=source,
        ranks=count,
        sizes=tuple(size for size, _ in taken),
        timings=tuple(
            CollectiveTiming(
                kind=kind,
                payload=result_bytes(kind, size, count, is_total=False),
                seconds=1e-6 * (size / told if program == "osu_bw" else told),
            )
            for size, told in taken
        ),
        is_serialized=program != "osu_bw",
        is_verified=bool(rows) and all(passed for *_, passed in rows),
    )


def _program_of_title(title: str, source: str) -> tuple[str, str]:
    for name, (said, kind) in OSU_PROGRAMS.items():
        if title == said:
            return name, kind
    raise BadInput(
        f"OSU's {title} Test is not read",
        rule=f"one of {', '.join(OSU_PROGRAMS)}",
        values=f"{source}: {title}",
        remedy="--program osu_allreduce, where the file has one",
    )


def _resolve_ranks(program: str, source: str, ranks: int | None) -> int:
    if program in _POINT_TO_POINT and ranks not in (None, 2):
        raise BadInput(
            f"{program} has two ranks",
            rule="one sends and one receives",
            values=f"--ranks {ranks}",
            remedy="--ranks 2, or without",
        )
    if program in _POINT_TO_POINT:
        return 2
    if ranks is None:
        raise BadInput(
            f"{source} does not say how many ranks there were",
            rule="OSU does not print them",
            values=program,
            remedy="--ranks 16, as in mpirun -n 16",
        )
    return ranks


def _iter_rows(lines: list[str], source: str) -> Iterator[tuple[int, float, bool]]:
    """Yield size, what was measured, and whether the result was looked at."""
    for line in lines:
        cells = line.split()
        if len(cells) < 2 or not cells[0].isdigit():
            continue
        if "Fail" in cells:
            raise wrong_results_error(source, " ".join(cells))
        yield int(cells[0]), parse_number(cells[1], line, source), "Pass" in cells
