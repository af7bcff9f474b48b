"""Batches of worker processes are those of threads, and nothing of them is left."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.object_reference import resolve_object
from jaxdist.input import (
    ArraySource,
    Global,
    Keep,
    Partial,
    Workers,
    loader,
)

X = np.random.default_rng(0).random((60, 40, 40)).astype(np.float32)
SOURCE = ArraySource({"x": X, "y": np.arange(60)})
MEMORY = Path("/dev/shm")


def batches(steps, **how):
    with loader(SOURCE, global_batch=8, seed=3, **how) as feed:
        return [jax.device_get(batch) for batch, _ in zip(feed, range(steps))]


def assert_equal(some, others):
    for one, other in zip(some, others, strict=True):
        assert set(one) == set(other)
        for key, array in one.items():
            assert array.dtype == other[key].dtype
            assert np.array_equal(array, other[key])


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_do_not_depend_on_workers(workers):
    shuffle = Partial(exchange_fraction=0.5, partitions=8)
    assert_equal(
        batches(17, shuffle=shuffle),
        batches(17, shuffle=shuffle, threads=Workers(workers)),
    )


def test_a_loop_goes_on_with_other_workers():
    whole = batches(12, shuffle=Global())
    assert_equal(
        whole[5:],
        batches(7, shuffle=Global(), start=5, threads=Workers(2)),
    )


def test_workers_go_on_when_the_whole_group_is_asked_to_end():
    """The process that trains may finish its step, and ends them itself."""
    with loader(SOURCE, global_batch=8, seed=3, threads=Workers(2)) as feed:
        seen = [jax.device_get(next(feed))]
        children = multiprocessing.active_children()
        for child, number in zip(children, (signal.SIGINT, signal.SIGTERM)):
            os.kill(child.pid, number)
        seen += [jax.device_get(next(feed)) for _ in range(20)]
    assert_equal(batches(21), seen)


def test_workers_do_not_see_what_is_kept():
    with pytest.raises(BadInput, match="do not see") as caught:
        batches(
            1,
            shuffle=Partial(exchange_fraction=0.5),
            keep=Keep(),
            threads=Workers(2),
        )
    assert caught.value.remedy[0] == "data.workers=0"


OWN = """
import numpy as np

class Squares:
    fingerprint = "squares"
    def __len__(self):
        return 40
    def get(self, ids):
        return {"x": ids.astype(np.float32) ** 2}
"""


def test_a_source_of_a_file_of_ones_own_goes_to_workers(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    source = resolve_object(f"{tmp_path / 'mine.py'}:Squares")()
    with loader(source, global_batch=8, threads=Workers(1)) as feed:
        batch = jax.device_get(next(feed))
    assert np.array_equal(batch["x"], batch["id"].astype(np.float32) ** 2)


LEFT = """
import gc, multiprocessing, os, sys, time
import numpy as np
from jaxdist.input import ArraySource, Workers, loader

if __name__ == "__main__":
    x = np.zeros((60, 40, 40), np.float32)
    feed = loader(ArraySource({"x": x}), global_batch=8, threads=Workers(1))
    seen = [next(feed)["x"].shape for _ in range(3)]
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    how = sys.argv[1]
    if how == "dropped":
        del feed
        gc.collect()
        print("dropped", flush=True)
    if how == "killed":
        time.sleep(600)
    if how == "raised":
        raise SystemExit(7)
"""


def there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(gone):
    end = time.monotonic() + 30
    while not gone():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["left", "dropped", "raised", "killed"])
def test_a_feed_that_is_left_open_leaves_nothing_behind(how, tmp_path):
    """In /dev/shm, and among the processes."""
    (tmp_path / "script.py").write_text(LEFT)
    words = [sys.executable, str(tmp_path / "script.py"), how]
    path = os.pathsep.join(filter(None, sys.path))
    before = set(MEMORY.iterdir())
    script = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "JAX_NUM_CPU_DEVICES": "1"},
    )
    pids = [int(word) for word in script.stdout.readline().split()]
    assert len(pids) == 1, script.stderr.read()
    mine = {path for path in set(MEMORY.iterdir()) - before if "psm_" in path.name}
    if how == "killed":
        script.send_signal(signal.SIGKILL)
    _, err = script.communicate(timeout=60)
    assert script.returncode == {"killed": -9, "raised": 7}.get(how, 0), err
    until(lambda: not any(map(there, pids)))
    until(lambda: not any(path.exists() for path in mine))
    # What is killed leaves its memory to Python's tracker, which says so.
    assert ("leaked" in err) == (how == "killed")
    assert how == "killed" or "Traceback" not in err
