"""A full disk costs the checkpoint that did not fit, and no other."""

import asyncio
import gc
import json
import shutil
import subprocess
import sys

import pytest

from jaxdist.core.files import MARKER_SUFFIX
from jaxdist.train.checkpoint import orbax_store, reader

RUN = """
import json, resource, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import SingleDeviceSharding
from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import orbax_store, reader
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.state import TrainState

folder, how = Path(sys.argv[1]), sys.argv[2]
device = SingleDeviceSharding(jax.devices()[0])

def numbers(step):
    kernel = np.random.default_rng(step).normal(size=(256, 256)).astype(np.float32)
    return TrainState(step=jnp.int32(step), params={"kernel": jnp.asarray(kernel)}, stats={}, opt=())

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

checkpoints = Checkpoints(folder, max_to_keep=100)
refused, step = None, 0
while refused is None and step < 20:
    step += 1
    if how == "file size" and step == 3:
        limit(100_000)
    try:
        checkpoints.save(numbers(step))
        checkpoints.wait()
    except BadInput as error:
        refused = error
limit(resource.RLIM_INFINITY)
left = [path.name for path in folder.iterdir()]
# What a thread of the write that failed creates when the error was raised long ago.
late = folder / f"{step}{orbax_store.INCOMPLETE_SUFFIX}" / "state" / "part"
if how == "file size":
    late.parent.mkdir(parents=True)
    late.write_text("")
damage = [reader.find_corruption(folder / str(s)) for s in reader.list_steps(folder)]
if how == "disk":
    (folder / "1").rename(folder / "gone")
    import shutil; shutil.rmtree(folder / "gone")
checkpoints.save(numbers(step))
checkpoints.wait()
target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), numbers(0))
found = checkpoints.restore_newest(target)
same = bool((found.state.params["kernel"] == numbers(step).params["kernel"]).all())
checkpoints.close()
end = [path.name for path in folder.iterdir()]
print(json.dumps({"step": step, "text": refused and str(refused), "left": sorted(left),
    "end": sorted(end), "damage": damage, "again": found.step, "same": same}))
"""


def fill(folder, how):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return json.loads(done.stdout)


def assert_only_the_last_was_lost(found):
    step = found["step"]
    earlier = [str(earlier) for earlier in range(1, step)]
    assert found["left"] == sorted([f".{step}{MARKER_SUFFIX}", *earlier])
    assert set(found["end"]) - {"1"} == {*earlier, str(step)} - {"1"}
    assert found["damage"] == [None] * (step - 1)
    assert (found["again"], found["same"]) == (step, True)
    text = found["text"]
    assert f"checkpoint {step} does not fit on the disk" in text
    assert "262 kB needed" in text
    for part in ("rule", "values", "remedy"):
        assert f"  {part}" in text


def test_a_file_that_may_not_grow(tmp_path):
    found = fill(tmp_path, "file size")
    assert found["step"] == 3
    assert_only_the_last_was_lost(found)
    assert "File too large" in found["text"]


@pytest.mark.system
def test_a_disk_that_is_full(tmp_path):
    mount = shutil.which("mount")
    assert mount, "this test mounts a small file system"
    subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True
    )
    try:
        found = fill(tmp_path, "disk")
        assert 2 < found["step"] < 6
        assert_only_the_last_was_lost(found)
        assert "No space left" in found["text"]
        assert not list(tmp_path.glob(f"*{orbax_store.INCOMPLETE_SUFFIX}*"))
        assert reader.list_steps(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_where_the_folder_should_be(tmp_path, kit):
    from jaxdist.core.errors import BadInput
    from jaxdist.train.checkpoint.checkpoints import Checkpoints

    (tmp_path / "checkpoints").write_text("")
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(BadInput, match="cannot be written"):
        checkpoints.save(kit.make_state(1))
    checkpoints.close()


def test_the_errors_that_follow_the_first_are_not_printed(caplog):
    orbax_store.OrbaxWriter().close()

    async def fail():
        raise OSError("No space left on device")

    async def write_all():
        task = asyncio.ensure_future(fail())
        await asyncio.wait([task])

    asyncio.run(write_all())
    gc.collect()
    assert not caplog.records
