"""What `jaxdist status` says of a real run, and of one that was killed."""

import json
import signal
import time

import pytest

from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.status import read_run_status

pytestmark = [pytest.mark.laws, pytest.mark.timeout(300)]


def test_a_run_of_two_processes_that_is_killed(job, tmp_path):
    """Seen while it goes, and dead without a word a moment later."""
    words = f"digits run.dir={tmp_path} data.dir={job.data} model.width=4 epochs=50"
    how = "launch", "local", "-n", 2, "--devices-per-process", 1, "--"
    child = job.start(*how, "train", *words.split())
    folder = RunFolder(tmp_path / "digits")
    while (
        len(read_run_status(folder).processes) < 2 or read_run_status(folder).step < 2
    ):
        assert child.poll() is None, child.communicate()[1]
        time.sleep(0.1)
    seen = read_run_status(folder)
    assert (seen.state, seen.steps, seen.count) == ("going", 1123, 2)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    code, out, _ = job.run("status", folder.path, "--json")
    assert (code, json.loads(out)["state"]) == (0, "dead")
