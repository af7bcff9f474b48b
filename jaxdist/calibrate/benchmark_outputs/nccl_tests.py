"""Parser of the output of nccl-tests: ranks in the head, then a table of sizes.

    #  Rank  0 Group  0 Pid   1234 on      node1 device  0 [0000:1b:00] NVIDIA H100
    #       size         count      type   redop    root     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)
            1024           256     float     sum      -1    21.53    0.05    0.09      0

The columns from `time` on come twice, out of place and in place.
"""

import re
from collections.abc import Sequence
from typing import Final

from jaxdist.calibrate.alpha_beta_fit import CollectiveTiming
from jaxdist.calibrate.benchmark_outputs.rows import (
    BenchmarkTable,
    parse_number,
    result_bytes,
    wrong_results_error,
)
from jaxdist.core.errors import BadInput, did_you_mean

NCCL_PROGRAMS: Final = {
    "all_reduce_perf": "all-reduce",
    "all_gather_perf": "all-gather",
    "reduce_scatter_perf": "reduce-scatter",
    "alltoall_perf": "all-to-all",
    "sendrecv_perf": "collective-permute",
}
"""Programs that are read, and what they measure."""
_RUN_PATTERN: Final = re.compile(r"nThread\s+\d+\s+nGpus\s+\d+")
_RANK_PATTERN: Final = re.compile(
    r"#\s*Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+\d+\s+on\s+"
    r"(?P<host>\S+)\s+device"
)
_PROGRAM_PATTERN: Final = re.compile(r"\b\w+_perf\b")
_ERRORS_PATTERN: Final = re.compile(r"#\s*Out of bounds values\s*:\s*(?P<count>\d+)")
_TIMESTAMP_PATTERN: Final = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")


def read(text: str, source: str, program: str | None) -> list[BenchmarkTable]:
    """Parse a log into one table for each start of a program; none in other logs.

    Args:
        text: the whole log, other programs' lines included.
        source: name of the file.
        program: name of the program; by default the text or the file name says it.

    Raises:
        BadInput: an unknown program, wrong results, or several groups at once.
    """
    if "busbw" not in text:
        return []
    runs: list[tuple[str | None, list[str]]] = []
    name = None
    for line in text.splitlines():
        # Newer versions print the program's name just before the head of a run, older
        # ones somewhere below it or nowhere.
        if named := _PROGRAM_PATTERN.search(line):
            name = named[0]
        if _RUN_PATTERN.search(line):
            runs.append((name, []))
        elif runs:
            started, lines = runs[-1]
            lines.append(line)
            runs[-1] = started or name, lines

    tables = []
    for started, lines in runs:
        in_file_name = next((name for name in NCCL_PROGRAMS if name in source), None)
        name = program or started or in_file_name
        if name not in NCCL_PROGRAMS:
            near = did_you_mean(name, NCCL_PROGRAMS) if name else None
            raise BadInput(
                f"{name} is not read"
                if name
                else f"{source} does not say which program printed it",
                rule=f"one of {', '.join(NCCL_PROGRAMS)}, in the text, in the name of "
                "the file, or given",
                values=f"{source}: {name or 'no name'}",
                remedy=f"did you mean {near}?" if near else "--program all_reduce_perf",
            )
        ranks, hosts = _parse_ranks(lines, source)
        rows = _parse_rows(lines, source)
        # In place, all-to-all and send-receive have no right result and print N/A:
        # those timings count only where no others were verified.
        verified = [row for row in rows if row[2]]
        taken = verified or rows
        kind = NCCL_PROGRAMS[name]
        tables.append(
            BenchmarkTable(
                suite="nccl-tests",
                program=name,
                source=source,
                ranks=ranks,
                hosts=hosts,
                sizes=tuple(size for size, *_ in taken),
                timings=tuple(
                    CollectiveTiming(
                        kind=kind,
                        # `size` is the longer of what a rank sends and receives
                        # (src/common.cu, doc/PERFORMANCE.md of nccl-tests).
                        payload=result_bytes(kind, size, ranks, is_total=True),
                        seconds=seconds,
                    )
                    for size, seconds, _ in taken
                ),
                is_verified=bool(verified),
            )
        )
    return tables


def _parse_ranks(lines: Sequence[str], source: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of ranks in the head of a run, and their hosts."""
    found = [one for line in lines if (one := _RANK_PATTERN.search(line))]
    ranks = {one["rank"] for one in found}
    groups = {one["group"] for one in found}
    if len(groups) > 1:
        raise BadInput(
            f"{source} is of several groups at once",
            rule="one group is measured: several share links",
            values=f"groups {', '.join(sorted(map(str, groups)))}",
            remedy="without NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK",
        )
    if len(ranks) < len(found) or not found:
        raise BadInput(
            f"{source} does not say how many ranks there were",
            rule="every rank has a line of its own in the head",
            values=f"{len(found)} lines, {len(ranks)} ranks",
            remedy="all of the output; several processes need a build with MPI=1",
        )
    return len(ranks), tuple(dict.fromkeys(one["host"] for one in found))


def _parse_rows(lines: Sequence[str], source: str) -> list[tuple[int, float, bool]]:
    """Return bytes, seconds and whether the result was verified, of each timing."""
    rows = []
    names: list[str] = []
    for line in lines:
        errors = _ERRORS_PATTERN.search(line)
        if errors and int(errors["count"]):
            raise wrong_results_error(source, line.strip("# "))
        cells = _TIMESTAMP_PATTERN.sub("", line).lstrip("# ").split()
        if cells[:1] == ["size"] and "busbw" in cells:
            names = [name for name in cells if name != "timestamp"]
            continue
        if line.startswith("#") or not (names and cells and cells[0].isdigit()):
            continue

        # Columns are counted from the right: older versions have no `root`, and leave
        # `redop` empty where nothing is summed.
        first = next(i for i, name in enumerate(names) if name in ("time", "cputime"))
        names_of_values = names[first:]
        values = cells[-len(names_of_values) :]
        size = int(cells[0])
        # A size of 0 is printed where the sizes asked for are too small for the ranks.
        if len(values) < len(names_of_values) or size == 0:
            continue
        for i, name in enumerate(names_of_values):
            if name not in ("time", "cputime"):
                continue
            # A timing is followed by algbw, busbw and the column of wrong results.
            wrong = values[i + 3]
            has_errors = wrong != "N/A" and names_of_values[i + 3] == "#wrong"
            if has_errors and parse_number(wrong, line, source) > 0:
                raise wrong_results_error(source, " ".join(line.split()))
            seconds = 1e-6 * parse_number(values[i], line, source)
            rows.append((size, seconds, wrong != "N/A"))
    return rows
