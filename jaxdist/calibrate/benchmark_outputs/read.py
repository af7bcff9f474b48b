"""Reading a benchmark's output, of whichever suite it is."""

from collections.abc import Sequence
from pathlib import Path

from jaxdist.calibrate.benchmark_outputs import nccl_tests, osu
from jaxdist.calibrate.benchmark_outputs.rows import BenchmarkTable, check_same_ranks
from jaxdist.core.errors import BadInput, did_you_mean


def read_benchmarks(
    paths: Sequence[Path], *, ranks: int | None = None, program: str | None = None
) -> tuple[BenchmarkTable, ...]:
    """Read files of one set of ranks.

    Args:
        paths: text as the programs print it; a log may have several tables.
        ranks: that took part, where it is not printed.
        program: which it was, where the text does not say or has several.

    Raises:
        BadInput: no such file, no known form, or tables that do not go together.
    """
    tables = tuple(one for path in paths for one in _read_file(path, ranks, program))
    check_same_ranks(tables)
    if ranks is not None and tables[0].ranks != ranks:
        raise BadInput(
            f"{tables[0].source} is not of {ranks} ranks",
            rule="--ranks is for output that does not say it",
            values=f"--ranks {ranks}, {tables[0].ranks} ranks in the head",
            remedy="without --ranks",
        )
    return tables


def _read_file(
    path: Path, ranks: int | None, program: str | None
) -> list[BenchmarkTable]:
    text = _read_text(path)
    if nccl_tests.matches(text):
        return nccl_tests.read(text, path.name, program)
    if osu.matches(text):
        return osu.read(text, path.name, ranks, program)
    raise BadInput(
        f"{path} is of no form that is read",
        rule="the text that nccl-tests or the OSU micro-benchmarks print, with its "
        "head",
        values=f"it begins with {text.strip()[:40]!r}",
        remedy="all_reduce_perf -b 1K -e 1G -f 2 -g 8 > all_reduce_perf.txt",
    )


def _read_text(path: Path) -> str:
    if not path.is_file():
        near = did_you_mean(str(path), [str(p) for p in path.parent.glob("*")])
        raise BadInput(
            f"there is no file {path}",
            rule="calibrate read takes files",
            values=str(path),
            remedy=f"did you mean {near}?" if near else "a file that is there",
        )
    return path.read_text(encoding="utf-8", errors="replace")
