"""Reading benchmark output of any supported suite."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jaxdist.calibrate.benchmark_outputs import nccl_tests, osu
from jaxdist.calibrate.benchmark_outputs.rows import BenchmarkTable
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text_encoding import decode_lenient

# What launchers put before each line that they pass on: who wrote it, and when.
_TIME_TAG: Final = re.compile(r"\s*\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) ?")
_WRITER_TAG: Final = re.compile(
    # [1,0]<stdout>: and [prterun-node0-7@1,0]<stdout>: of mpirun of Open MPI 4 and 5
    r"\s*\[\S*?\d+,\d+\]<std\w+>: ?"
    # [pod/nccl-launcher-abcde/launcher] of kubectl logs --prefix
    r"|\s*\[pod/[^\]\s]+\] ?"
    # [0] of mpiexec -l, and 0: of srun --label
    r"|\s*\[\d+\] |\s*\d+: ?(?!\d)"
)


def strip_line_tags(text: str) -> str:
    """Return a log without what launchers put before its lines.

    Lines of different writers come mixed; those of each are together afterwards.

    >>> strip_line_tags("[1,0]<stdout>:# OSU\\n[1,1]<stdout>:x\\n[1,0]<stdout>:4 5.3")
    '# OSU\\n4 5.3\\nx'
    """
    by_writer: dict[str, list[str]] = {}
    for line in text.splitlines():
        writer, start = "", 0
        while found := _TIME_TAG.match(line, start) or _WRITER_TAG.match(line, start):
            # Times differ from line to line, and name nobody.
            writer += "" if found.re is _TIME_TAG else found[0].strip()
            start = found.end()
        by_writer.setdefault(writer, []).append(line[start:])
    return "\n".join(line for lines in by_writer.values() for line in lines)


def read_benchmarks(
    paths: Sequence[Path], *, ranks: int | None = None, program: str | None = None
) -> tuple[BenchmarkTable, ...]:
    """Read the tables of files that were measured on one set of ranks.

    Args:
        paths: text as the programs print it; a log may have several tables.
        ranks: number of ranks, where it is not printed.
        program: name of the program, where the text does not say it or has several.

    Raises:
        BadInput: no such file, unknown output, or tables of different ranks.
    """
    tables: list[BenchmarkTable] = []
    for path in paths:
        if not path.is_file():
            near = did_you_mean(str(path), [str(p) for p in path.parent.glob("*")])
            raise BadInput(
                f"there is no file {path}",
                rule="calibrate read takes files",
                values=str(path),
                remedy=f"did you mean {near}?" if near else "a file that is there",
            )
        # Logs of clusters may hold stray bytes of other programs.
        text = strip_line_tags(decode_lenient(path.read_bytes()))
        found = nccl_tests.read(text, path.name, program)
        found = found or osu.read(text, path.name, ranks, program)
        tables += found
        if not found:
            raise BadInput(
                f"{path} is of no form that is read",
                rule="the text that nccl-tests or the OSU micro-benchmarks print, with "
                "its head",
                values=f"it begins with {text.strip()[:40]!r}",
                remedy="all_reduce_perf -b 1K -e 1G -f 2 -g 8 > all_reduce_perf.txt",
            )

    # One line is fitted through all tables, so all must have crossed the same links.
    first, *others = tables
    for table in others:
        if (table.ranks, set(table.hosts)) != (first.ranks, set(first.hosts)):
            listed = [
                f"{t.provenance}: {t.ranks} ranks"
                + f" on {', '.join(t.hosts)}" * bool(t.hosts)
                for t in (first, table)
            ]
            raise BadInput(
                "the tables are of different ranks",
                rule="one fit is of one set of ranks",
                values="; ".join(listed),
                remedy="one after the other, each with its --level and --cluster of "
                "the one before",
            )
        if table.is_serialized != first.is_serialized:
            raise BadInput(
                "osu_bw is read alone",
                rule="it keeps a window of messages in flight, so that it says nothing "
                "of what a message takes, and the others do",
                values=f"{first.provenance} and {table.provenance}",
                remedy="first the others, then osu_bw with --cluster of what was made",
            )
    if ranks is not None and first.ranks != ranks:
        raise BadInput(
            f"{first.source} is not of {ranks} ranks",
            rule="--ranks is for output that does not say it",
            values=f"--ranks {ranks}, {first.ranks} ranks in the head",
            remedy="without --ranks",
        )
    return tuple(tables)
