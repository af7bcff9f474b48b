"""Parser of the OSU micro-benchmarks: a title, then sizes with microseconds or MB/s.

# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_INT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       5.31              4.87              6.02        1000
"""

import re
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
# Matches "MPI-CUDA ", and not "MPI_Get ", which is part of a title.
_TRANSPORT_PATTERN: Final = re.compile(r"^[A-Za-z]+(-\S+)?\s+")
_POINT_TO_POINT: Final = ("osu_latency", "osu_bw")


def read(
    text: str, source: str, ranks: int | None, program: str | None
) -> list[BenchmarkTable]:
    """Parse a log into one table for each title; none in other logs.

    Args:
        text: the whole log, other programs' lines included.
        source: name of the file.
        ranks: number of ranks, which OSU does not print; two in `osu_latency` and
            `osu_bw`.
        program: program whose tables are read; by default all.

    Raises:
        BadInput: an unknown benchmark, no number of ranks, or wrong results.
    """
    runs: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if title := _TITLE_PATTERN.match(line):
            runs.append((_TRANSPORT_PATTERN.sub("", title["what"]), []))
        elif runs:
            runs[-1][1].append(line)

    if runs and program is not None:
        titles = [title for title, _ in runs]
        there = [name for name, (title, _) in OSU_PROGRAMS.items() if title in titles]
        if program not in there:
            raise BadInput(
                f"{source} has no table of {program}",
                rule=f"it has {', '.join(there) or 'none that is read'}",
                values=f"--program {program}",
                remedy=f"--program {there[0]}"
                if there
                else f"one of {', '.join(OSU_PROGRAMS)}",
            )
        runs = [run for run in runs if run[0] == OSU_PROGRAMS[program][0]]
    return [_parse_run(title, lines, source, ranks) for title, lines in runs]


def _parse_run(
    title: str, lines: list[str], source: str, ranks: int | None
) -> BenchmarkTable:
    programs = {title: (name, kind) for name, (title, kind) in OSU_PROGRAMS.items()}
    if title not in programs:
        raise BadInput(
            f"OSU's {title} Test is not read",
            rule=f"one of {', '.join(OSU_PROGRAMS)}",
            values=f"{source}: {title}",
            remedy="--program osu_allreduce, where the file has one",
        )
    program, kind = programs[title]
    if program in _POINT_TO_POINT:
        if ranks not in (None, 2):
            raise BadInput(
                f"{program} has two ranks",
                rule="one sends and one receives",
                values=f"--ranks {ranks}",
                remedy="--ranks 2, or without",
            )
        ranks = 2
    if ranks is None:
        raise BadInput(
            f"{source} does not say how many ranks there were",
            rule="OSU does not print them",
            values=program,
            remedy="--ranks 16, as in mpirun -n 16",
        )

    sizes, timings, verified = [], [], []
    for line in lines:
        cells = line.split()
        # Other lines of a job's log lie between the rows.
        if len(cells) < 2 or not cells[0].isdigit():
            continue
        if "Fail" in cells:
            raise wrong_results_error(source, " ".join(cells))
        verified.append("Pass" in cells)
        # The second column is the average over ranks: microseconds, or MB/s with MB of
        # 10^6 bytes in osu_bw. A bandwidth of 0 says nothing of the time.
        size, value = int(cells[0]), parse_number(cells[1], line, source)
        if program == "osu_bw" and value <= 0:
            continue
        sizes.append(size)
        timings.append(
            CollectiveTiming(
                kind=kind,
                # A size is one rank's part in osu_allgather and osu_alltoall, and all
                # ranks' together in osu_reduce_scatter.
                payload=result_bytes(kind, size, ranks, is_total=False),
                seconds=1e-6 * (size / value if program == "osu_bw" else value),
            )
        )
    return BenchmarkTable(
        suite="OSU",
        program=program,
        source=source,
        ranks=ranks,
        sizes=tuple(sizes),
        timings=tuple(timings),
        is_serialized=program != "osu_bw",
        is_verified=bool(verified) and all(verified),
    )
