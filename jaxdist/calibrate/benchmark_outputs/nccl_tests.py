"""Output of nccl-tests: ranks in the head, then a table of sizes.

    #  Rank  0 Group  0 Pid   1234 on      node1 device  0 [0000:1b:00] NVIDIA H100
    #       size         count      type   redop    root     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)
            1024           256     float     sum      -1    21.53    0.05    0.09      0

with the columns from `time` on twice, out of place and in place. `size` is the longer
of what a rank sends and receives (src/common.cu, doc/PERFORMANCE.md of nccl-tests).
Columns are read by their names, from the right: older versions have no root, and leave
redop empty where nothing is summed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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


def matches(text: str) -> bool:
    """Return whether nccl-tests printed that."""
    return bool(_RUN_PATTERN.search(text)) and "busbw" in text


def read(text: str, source: str, program: str | None) -> list[BenchmarkTable]:
    """Read what was printed, one table for each start of a program.

    Args:
        text: all of it, with whatever else the log has.
        source: name of the file.
        program: which one it was; else the text or the name of the file says so.

    Raises:
        BadInput: a program that is not known, wrong results, several groups at once.
    """
    return [_parse_run(one, source, program) for one in _split_runs(text)]


@dataclass
class _Run:
    """Lines of one start of a program."""

    name: str | None
    lines: list[str] = field(default_factory=list)


def _split_runs(text: str) -> list[_Run]:
    """Split a log at the starts; newer versions say the name just before."""
    found: list[_Run] = []
    name = None
    for line in text.splitlines():
        named = _PROGRAM_PATTERN.search(line)
        name = named[0] if named else name
        if _RUN_PATTERN.search(line):
            found.append(_Run(name))
        elif found:
            found[-1].lines.append(line)
            found[-1].name = found[-1].name or name
    return found


def _parse_run(run: _Run, source: str, program: str | None) -> BenchmarkTable:
    name = _check_program(program or run.name or _program_from_name(source), source)
    ranks, hosts = _parse_ranks(run.lines, source)
    rows = list(_iter_rows(run.lines, source))
    checked = [row for row in rows if row.is_verified]
    kind = NCCL_PROGRAMS[name]
    # In place, all-to-all and send-receive have no right result and print N/A.
    taken = checked or rows
    return BenchmarkTable(
        suite="nccl-tests",
        program=name,
        source=source,
        ranks=ranks,
        hosts=hosts,
        sizes=tuple(row.size for row in taken),
        timings=tuple(
            CollectiveTiming(
                kind=kind,
                payload=result_bytes(kind, row.size, ranks, is_total=True),
                seconds=row.seconds,
            )
            for row in taken
        ),
        is_verified=bool(checked),
    )


def _program_from_name(source: str) -> str | None:
    return next((name for name in NCCL_PROGRAMS if name in source), None)


def _check_program(name: str | None, source: str) -> str:
    if name in NCCL_PROGRAMS:
        return name
    near = did_you_mean(name, NCCL_PROGRAMS) if name else None
    raise BadInput(
        f"{source} does not say which program printed it"
        if name is None
        else f"{name} is not read",
        rule=f"one of {', '.join(NCCL_PROGRAMS)}, in the text, in the name of the "
        "file, or "
        "given",
        values=f"{source}: {name or 'no name'}",
        remedy=f"did you mean {near}?" if near else "--program all_reduce_perf",
    )


def _parse_ranks(lines: Sequence[str], source: str) -> tuple[int, tuple[str, ...]]:
    """Return how many ranks the head lists, and their hosts."""
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


@dataclass(frozen=True)
class _TimingRow:
    """One timing of a table."""

    size: int
    seconds: float
    is_verified: bool


def _iter_rows(lines: Sequence[str], source: str) -> Iterator[_TimingRow]:
    """Yield the timings of a table, those in place after those out of place."""
    names: list[str] = []
    for line in lines:
        cells = _TIMESTAMP_PATTERN.sub("", line).lstrip("# ").split()
        bad = _ERRORS_PATTERN.search(line)
        if bad and int(bad["count"]):
            raise wrong_results_error(source, line.strip("# "))
        if cells[:1] == ["size"] and "busbw" in cells:
            names = [name for name in cells if name != "timestamp"]
        elif names and cells and cells[0].isdigit() and not line.startswith("#"):
            yield from _parse_line(cells, names, line, source)


def _parse_line(
    cells: Sequence[str], names: Sequence[str], line: str, source: str
) -> Iterator[_TimingRow]:
    """Yield the timings of one line."""
    first = next(i for i, name in enumerate(names) if name in ("time", "cputime"))
    values = cells[-(len(names) - first) :]
    size = int(cells[0])
    if len(values) < len(names) - first or size == 0:
        return
    for i, name in enumerate(names[first:]):
        if name in ("time", "cputime"):
            yield _TimingRow(
                size,
                1e-6 * parse_number(values[i], line, source),
                _check_results(values[i:], names[first + i :], line, source),
            )


def _check_results(
    values: Sequence[str], names: Sequence[str], line: str, source: str
) -> bool:
    """Return whether results were looked at; refuse wrong ones."""
    wrong = values[3]
    if wrong == "N/A":
        return False
    if names[3] == "#wrong" and parse_number(wrong, line, source) > 0:
        raise wrong_results_error(source, " ".join(line.split()))
    return True
