"""Runs every command that the README and docs/ show, as a reader would type it.

The pages' ```bash lines and ```python blocks run in order, in a fresh copy of the
checkout whose `.venv/bin` comes first on the path. A block that cannot run here says
why on the line above its fence: `<!-- not run: REASON -->`.

    python3 .ci/commands.py [--done COMMAND]... [PAGE]...
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>.+?) -->\n\s*)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


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


def run(block: Block, folder: Path, done: list[str]) -> int:
    """Run a block in a folder; return how many commands ran."""
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path}
    if block.language == "python":
        steps = [("python block", ["python", "-c", block.text])]
    else:
        todo = [line for line in block.commands if line not in done]
        steps = [(c, ["bash", "-euo", "pipefail", "-c", c]) for c in todo]
    for said, command in steps:
        print(f"{block.page}: {said}", flush=True)
        start = time.monotonic()
        subprocess.run(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, check=True
        )
        print(f"  {time.monotonic() - start:.1f} s", flush=True)
    return len(steps)


def main() -> int:
    """Run the pages' commands; 1 at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--done", action="append", default=[], metavar="COMMAND")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    args = parser.parse_args()
    chosen = [page.resolve() for page in args.pages] or pages()
    ran, left = 0, []
    with tempfile.TemporaryDirectory(prefix="jaxdist-commands-") as name:
        copy_checkout(Path(name))
        for block in (b for page in chosen for b in blocks(page)):
            if block.language in ("bash", "python"):
                if block.reason:
                    left.append(block)
                    continue
                try:
                    ran += run(block, Path(name), args.done)
                except subprocess.CalledProcessError as error:
                    print(f"failed with exit code {error.returncode}", file=sys.stderr)
                    return 1
    for block in left:
        print(f"not run, {block.page}: {block.reason}")
    print(f"{ran} commands of the pages ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
