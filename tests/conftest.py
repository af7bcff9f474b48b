"""Fake devices and strictness, set before jax is imported anywhere; processes to run."""

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "16")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

# What jax traces and compiles are millions of objects that stay. Python looks through all
# of them whenever a quarter is new, which takes a third of the time of the tests.
gc.set_threshold(20_000, 20, 50)

# A shell's background job starts with Ctrl-C ignored, and hands that to its children:
# a test that stops a run from the keyboard would wait for its end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test holds or not, however busy the machine is; each has its hang timeout.
settings.register_profile(
    "jaxdist", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("jaxdist")


MAX_WORKER_BYTES = 5 * 10**9
"""Memory of a process from which compiled programs are dropped behind a file of tests."""


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory():
    """Drop compiled programs where they have become many: thousands of tests add up.

    Until then what a file of tests leaves is not looked through again.
    """
    yield
    gc.freeze()
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return
    held = int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if held > MAX_WORKER_BYTES and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.unfreeze()
        gc.collect()


@contextlib.contextmanager
def _as_it_was(one):
    """Give a signal its handler back: a run that ends for it ignores it from then on."""
    before = signal.getsignal(one)
    try:
        yield
    finally:
        signal.signal(one, before)


class Job:
    """`jaxdist` commands as processes of their own, on data that is prepared once."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        # XLA_FLAGS stay: their programs are compiled in the way of the tests' own.
        mine = {k: text for k, text in os.environ.items() if not k.startswith("JAX_")}
        self.env = mine | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}

    def python(self, *words, **env):
        """Start a Python process with the environment of a person at a terminal."""
        return subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env | env,
        )

    def start(self, *words, **env):
        """Start a command."""
        return self.python("-m", "jaxdist.launch", *words, **env)

    def run(self, *words, **env):
        """Run a command to its end: exit code, standard output, standard error."""
        child = self.start(*words, **env)
        out, err = child.communicate()
        return child.returncode, out, err

    @staticmethod
    def call(*words):
        """Run a command in this process, which takes no start; returns as `run` does."""
        import jax

        from jaxdist.launch.cli.main import main

        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ),
            _as_it_was(signal.SIGTERM),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            jax.numpy_dtype_promotion("standard"),
        ):
            try:
                code = main([*map(str, words)])
            finally:
                # A run in float64 must not leave it to the tests behind.
                jax.config.update("jax_enable_x64", False)
        return code, out.getvalue(), err.getvalue()

    def hash(self, folder):
        """Return the digest of a run's newest parameters."""
        code, out, err = self.call("ckpt", "hash", folder)
        assert (code, err) == (0, "")
        return out.strip()

    @staticmethod
    def lines(path):
        """Read the whole lines of a file of JSON lines that may still grow."""
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    @staticmethod
    def stop(child):
        """Kill a process as -9 does and wait until it is gone."""
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    from jaxdist.input.digits import NAME, build
    from jaxdist.input.prepare import ensure_prepared

    job = Job(tmp_path_factory.mktemp("jobs"))
    ensure_prepared(job.data / NAME, build)
    return job
