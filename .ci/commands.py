"""Runs every command that the README and docs/ show, as a reader would type it.

A page's ```bash lines and ```python blocks run in order, in a fresh copy of the
checkout whose `.venv/bin` comes first on the path. A block that cannot run here says
why on the line above its fence: `<!-- not run: REASON -->`.

The README is first, and makes the virtual environment. What it leaves is where every
other page begins, in a copy of its own, so some pages run at the same time. Their
files, runs and compiled programs are their own; the virtual environment is the
README's. Two kinds of pages are kept apart (`PORTS`, `ALONE`).
With `--done "make train"` environment and run are those that stand in the checkout.

    python3 .ci/commands.py [--workers N] [--done COMMAND]... [PAGE]...
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>.+?) -->\n\s*)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
TRAINING = "make train"
"""What makes the virtual environment and the run that pages begin with."""
EXTRAS = "sweep,track,volumes"
"""What some pages need and say how to install, as anybody does who uses it."""
CACHE = ".cache"  # of compiled programs, in a page's folder; no file of the checkout

PORTS = re.compile(r"\bjaxdist launch |\bLoopback\b")
"""What listens at a port that was free a moment before: one page after the other."""

PLAIN = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)
"""Plain machine code, made in a sixth of the time, as in `make test`."""
SHIPPED = re.compile(r"(README|tutorial_\w+|training|sweep|compare)\.md")
"""Pages whose programs are compiled as people get them, beside those of `ALONE`."""

ALONE = re.compile(
    r"^jaxdist scale |^jaxdist calibrate (?!fit |read )|^pip |^make ", re.MULTILINE
)
"""What refuses or fits what it measures of the machine, or changes the virtual
environment: nothing runs beside it."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: str
    language: str
    text: str
    reason: str | None
    """Why it is not run."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Command lines without their comments, continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        plain = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
        return tuple(line for line in plain if line)


def pages() -> list[Path]:
    """Return the pages in the order in which they are read."""
    first = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*first, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        yield Block(page=str(page.relative_to(ROOT)), **found.groupdict())


def copy_checkout(target: Path) -> None:
    """Copy what git would track, links as links."""
    # A checkout may belong to another user than the one that runs its checks.
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = [*git, "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if os.path.lexists(ROOT / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a page."""

    said: str
    """What its commands wrote, whole."""
    ran: int
    """Commands that ran to their end."""
    failed: str = ""
    """The command that did not, and how; empty where all did."""
    ended: bool = False
    """Whether it did not come to its end, as another page had failed."""


def steps(page: Path, done: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield what is run for a page: its name, and the words of a process."""
    for block in runnable(page):
        if block.language == "python":
            yield "python block", ["python", "-c", block.text]
        else:
            for command in block.commands:
                if command not in done:
                    yield command, ["bash", "-euo", "pipefail", "-c", command]


def runnable(page: Path) -> list[Block]:
    """Return the blocks of a page that are run."""
    chosen = (b for b in blocks(page) if b.language in ("bash", "python"))
    return [block for block in chosen if not block.reason]


def run(
    words: list[str],
    folder: Path,
    flags: Mapping[str, str],
    output: IO[bytes],
    stop: threading.Event,
) -> int | None:
    """Run a process in a folder; return its exit code, None where `stop` ended it."""
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / CACHE)}
    child = subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, "PATH": path, **cache, **flags},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that it is ended with all that it has started
    )
    try:
        while not stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                return child.wait(timeout=0.1)
        return None
    finally:
        end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, and what it has started."""
    for sent, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, None)):
        if child.poll() is None:
            os.killpg(child.pid, sent)
            with suppress(subprocess.TimeoutExpired):
                child.wait(seconds)


def run_page(
    page: Path, folder: Path, done: Sequence[str], stop: threading.Event
) -> Outcome:
    """Run a page's commands in a folder; the first that fails stops all pages."""
    begun, ran, failed, code = time.monotonic(), 0, "", 0
    name = page.relative_to(ROOT)
    with tempfile.TemporaryFile() as output:

        def say(line: str) -> None:
            output.write(f"{line}\n".encode())
            output.flush()

        for title, words in steps(page, done):
            say(f"{name}: {title}")
            start = time.monotonic()
            code = run(words, folder, flags_of(page), output, stop)
            if code != 0:
                break
            say(f"  {time.monotonic() - start:.1f} s")
            ran += 1
        if code:
            failed = f"{name}: {title} failed with exit code {code}"
            stop.set()
        say(f"{name}: {ran} commands in {time.monotonic() - begun:.1f} s")
        output.seek(0)
        said = output.read().decode(errors="replace")
    return Outcome(said=said, ran=ran, failed=failed, ended=code is None)


def run_pages(
    some: Sequence[Path], start: Path, done: Sequence[str], stop: threading.Event
) -> list[Outcome]:
    """Run pages one after the other, each in a copy of what is in a folder."""
    found = []
    for page in some:
        if stop.is_set():
            break
        with tempfile.TemporaryDirectory(prefix="jaxdist-page-") as name:
            folder = Path(name)
            ignored = shutil.ignore_patterns(".venv")
            shutil.copytree(
                start, folder, symlinks=True, ignore=ignored, dirs_exist_ok=True
            )
            if (start / ".venv").exists():
                (folder / ".venv").symlink_to(start / ".venv")
            found.append(run_page(page, folder, done, stop))
    return found


def shown(page: Path) -> str:
    """Return all that a page runs."""
    return "\n".join(c for b in runnable(page) for c in (*b.commands, b.text))


def is_alone(page: Path) -> bool:
    """Tell whether nothing runs beside a page."""
    return bool(ALONE.search(shown(page)))


def flags_of(page: Path) -> dict[str, str]:
    """Return the variables that say how a page's programs are compiled."""
    shipped = SHIPPED.match(page.name) or is_alone(page)
    return {} if shipped else {"XLA_FLAGS": PLAIN}


def groups(chosen: Sequence[Path]) -> tuple[list[list[Path]], list[list[Path]]]:
    """Return pages that may run beside others, and those that run alone.

    Pages of a group run one after the other. Those that listen at ports are the first
    group, as they take longest; the others are groups of their own, in their order.
    """
    chosen = [page for page in chosen if shown(page)]
    alone = [page for page in chosen if is_alone(page)]
    ports = [p for p in chosen if p not in alone and PORTS.search(shown(p))]
    others = [[page] for page in chosen if page not in alone and page not in ports]
    return ([ports] if ports else []) + others, [[page] for page in alone]


def copy_training(target: Path) -> None:
    """Put what `make train` has made in the checkout where the README's would be."""
    (target / ".venv").symlink_to(ROOT / ".venv")
    for name in ("data", "runs/digits"):
        shutil.copytree(ROOT / name, target / name)


def install_extras(folder: Path) -> None:
    """Add the extras of the pages to the virtual environment of a checkout."""
    pip = folder / ".venv" / "bin" / "pip"
    constraints = {"PIP_CONSTRAINT": str(folder / "constraints.txt")}
    subprocess.run(
        [pip, "install", "--quiet", "--editable", f".[{EXTRAS}]"],
        cwd=folder,
        env={**os.environ, **constraints},
        check=True,
    )


def outcomes(
    chosen: Sequence[Path], start: Path, done: Sequence[str], workers: int
) -> Iterator[Outcome]:
    """Run all pages from a fresh checkout; yield them in the order of `groups`."""
    copy_checkout(start)
    stop = threading.Event()
    readme = ROOT / "README.md"
    trained = TRAINING in done
    if trained:
        copy_training(start)
    if readme in chosen:
        yield run_page(readme, start, done, stop)
        if not stop.is_set():
            install_extras(ROOT if trained else start)
    beside, alone = groups([page for page in chosen if page != readme])
    for some, at_once in ((beside, workers), (alone, 1)):
        with ThreadPoolExecutor(at_once) as pool:
            try:
                running = [pool.submit(run_pages, g, start, done, stop) for g in some]
                for group in running:
                    yield from group.result()
            except BaseException:  # Ctrl-C, and an error of this script
                stop.set()
                raise


def main() -> int:
    """Run the pages' commands; 1 if one fails, which ends the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--done", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    args = parser.parse_args()
    chosen = [page.resolve() for page in args.pages] or pages()
    ran, failed = 0, []
    with tempfile.TemporaryDirectory(prefix="jaxdist-commands-") as name:
        for found in outcomes(chosen, Path(name), args.done, args.workers):
            if not found.ended:
                print(found.said, end="", flush=True)
            ran += found.ran
            failed += [found.failed] if found.failed else []
    for line in failed:
        print(line, file=sys.stderr)
    if failed:
        return 1
    for block in (b for page in chosen for b in blocks(page) if b.reason):
        print(f"not run, {block.page}: {block.reason}")
    print(f"{ran} commands of the pages ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
