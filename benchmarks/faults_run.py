"""A run that is harmed: its launcher, what it writes, and where its processes are."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import psutil

from jaxdist.launch.testbed import faults, manager
from jaxdist.launch.testbed.namespaces import check_netns_support

NET = Path(__file__).with_name("faults_net.py")
EPOCH = 100
"""Steps of an epoch of that network."""
LONG_S = 300
SIGNALS = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "damage": signal.SIGKILL,
}


class Local:
    """Processes on loopback: no links to harm."""

    kinds: tuple[str, ...] = ()

    def __init__(self, count):
        self.words = ("launch", "local", "-n", count)

    def harm(self, kind, rank):
        """Refuse what is done to links."""
        raise ValueError(f"{kind}: loopback has no links to harm")

    def mend(self, rank):
        """Nothing was done to a link."""

    def left(self):
        return []


class Box:
    """Hosts of a testbed, whose links are cut and slowed down."""

    kinds = ("cut", "slow")
    rate = "200mbit"
    slow = "4mbit"

    def __init__(self, count):
        self.hosts = manager.create_testbed(count, self.rate)
        self.words = ("testbed", "run")

    def harm(self, kind, rank):
        if kind == "cut":
            faults.cut_link(self.hosts, rank)
        else:
            faults.limit_link_rate(self.hosts, rank, self.slow)

    def mend(self, rank):
        faults.clear_faults(self.hosts, rank)

    def left(self):
        manager.remove_testbed()
        return list(manager.netns_names())


@contextmanager
def place(hosts, processes):
    """Make a testbed of so many hosts, or, with 0, take processes of loopback."""
    if not hosts:
        yield Local(processes)
        return
    check_netns_support()
    found = Box(hosts)
    try:
        yield found
    finally:
        found.left()


@contextmanager
def disk(folder: Path):
    """Make a folder a small disk of its own where that can be; tell whether it is."""
    folder.mkdir()
    words = ("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder))
    own = os.geteuid() == 0 and not subprocess.run(words, check=False).returncode
    try:
        yield own
    finally:
        if own:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Run:
    """A launcher with its processes, and what it writes.

    Args:
        folder: of the runs.
        words: of the command that starts processes.
        count: of processes.
        restarts: that it may make.
        steps: of the run.
        hang_timeout_s: seconds that a step may take.
    """

    def __init__(self, folder: Path, words, count, *, restarts, steps, hang_timeout_s):
        self.folder = folder / "harmed"
        self.read = folder.with_name(f"{folder.name}-read")
        self.read.mkdir(exist_ok=True)
        self.metrics = self.folder / "metrics.jsonl"
        self.lines: list[tuple[float, str]] = []
        how = ("--devices-per-process", 1, "--restarts", restarts)
        # Half a step less: their number is rounded up.
        epochs = f"epochs={(steps - 0.5) / EPOCH}"
        more = (f"run.dir={folder}", f"run.hang_timeout_s={hang_timeout_s}", epochs)
        # The last start of a soak ends it: another length, which is asked for.
        train = ("train", NET, f"plan.mesh.data={count}", *more, "--change")
        command = (sys.executable, "-m", "jaxdist.launch", *words, *how, "--", *train)
        self.child = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "FAULTS_READ": str(self.read),
            },
        )
        self._reader = Thread(target=self._reads, daemon=True)
        self._reader.start()

    def _reads(self):
        for line in self.child.stdout or ():
            self.lines.append((time.time(), line.rstrip()))

    def rows(self, kind="train", end=None):
        """Lines of a kind, all or those in so many bytes of the end."""
        if not self.metrics.exists():
            return []
        with self.metrics.open("rb") as file:
            file.seek(max(0, self.metrics.stat().st_size - end) if end else 0)
            lines = file.read().decode(errors="replace").split("\n")
        rows = []
        for line in lines:
            with suppress(ValueError):  # the first one, or one that a full disk has cut
                rows.append(json.loads(line))
        return [row for row in rows if row["kind"] == kind]

    def steps(self, after=0.0):
        """Lines of the last steps, those that were finished after a moment."""
        return [row for row in self.rows(end=1 << 16) if row["time"] > after]

    def said(self, words, after):
        """The first line with these words after a moment."""
        found = (line for line in list(self.lines) if line[0] > after)
        return next((line for line in found if words in line[1]), None)

    def process(self, rank):
        """The process of a rank."""
        for child in self.children():
            with suppress(psutil.Error):
                if child.environ().get("JAXDIST_RANK") == str(rank):
                    return child
        raise SystemExit(f"no process {rank}")

    def children(self):
        """All processes that the launcher has started."""
        return psutil.Process(self.child.pid).children(recursive=True)

    def wait(self, what):
        """Wait until something is there, and return it."""
        end = time.monotonic() + LONG_S
        while not (found := what()):
            if self.child.poll() is not None or time.monotonic() > end:
                raise SystemExit("\n".join(line for _, line in self.lines[-80:]))
            time.sleep(0.05)
        return found

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.child.terminate()
        self.child.wait()

    def ends(self, code):
        """Wait for the end, which is the one that is meant."""
        self.child.wait()
        self._reader.join()
        if self.child.returncode != code:
            raise SystemExit("\n".join(line for _, line in self.lines[-80:]))

    def hash(self):
        """Digest of the newest parameters."""
        command = [sys.executable, "-m", "jaxdist.launch", "ckpt", "hash"]
        done = subprocess.run(
            [*command, str(self.folder)], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()
