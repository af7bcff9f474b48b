"""Progress: which step the run on a testbed's hosts has done, seen from outside."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from jaxdist.core.errors import BadInput
from jaxdist.launch.run_folder.folder import RunFolder, read_last_row
from jaxdist.launch.testbed.hosts import EmulatedCluster

_POLL_S: Final = 0.05


def wait_for_step(testbed: EmulatedCluster, step: int) -> None:
    """Wait until the run on these hosts has done a step.

    Raises:
        BadInput: nothing runs there, or it ended before.
    """
    inside = {pid for rank in range(testbed.num_hosts) for pid in testbed.pids(rank)}
    # What has started the processes on the hosts lives on while it starts them again
    # after a failure: the run is there as long as it is.
    starters: dict[int, psutil.Process] = {}
    for pid in inside:
        with suppress(psutil.Error):  # it has just ended
            parent = psutil.Process(pid).parent()
            if parent is not None and parent.pid not in inside:
                starters[parent.pid] = parent
    if not starters:
        raise BadInput(
            "no run is on these hosts",
            rule="--at-step waits for a step of the run that is on them",
            values=f"--at-step {step}",
            remedy="jaxdist testbed run -- train digits",
        )
    last = 0
    running = True
    while running:
        if (last := last_completed_step(testbed) or last) >= step:
            return
        time.sleep(_POLL_S)
        running = False
        for process in starters.values():
            with suppress(psutil.Error):
                # A zombie has ended, and only waits for its parent to ask.
                ended = process.status() == psutil.STATUS_ZOMBIE
                running = running or (process.is_running() and not ended)
    raise BadInput(
        f"the run ended before step {step}",
        rule="--at-step is a step that the run comes to",
        values=f"--at-step {step}; the last one that was seen is {last}",
        remedy=f"--at-step {max(last // 2, 1)}",
    )


def last_completed_step(testbed: EmulatedCluster) -> int:
    """Return the last step that the run on these hosts has done; 0 before the first."""
    # Nothing here knows the run's folder, but process 0 writes a line a step and has
    # that file open.
    name = RunFolder(Path()).metrics.name
    for pid in testbed.pids(0):
        with suppress(psutil.Error):
            for file in psutil.Process(pid).open_files():
                if os.path.basename(file.path) == name:
                    row = read_last_row(Path(file.path), kind="train")
                    return int(row["step"]) if row else 0
    return 0
