"""The watch: who is stuck is named, and who is only slow is left alone."""

import sys
import textwrap
import threading
import time

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.config import RunConfig
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.launchers.processes.group import ProcessesFailed
from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.training.monitor.watchdog import (
    HangWatchdog,
    ProcessHeartbeat,
    diagnose_hang,
    phase_limit_s,
)

BEGIN = """
import os, signal, sys, time
from pathlib import Path
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.distributed import initialize
from jaxdist.launch.training.monitor.watchdog import HangWatchdog

rank = initialize(600) if "JAXDIST_RANK" in os.environ else 0
mine, stacks = process_group(), Path(sys.argv[1])

def steps(watch, number, seconds=0.02):
    for step in range(1, number + 1):
        for phase in "input", "compute":
            watch.on_phase(phase, step)
            time.sleep(seconds)
            watch.on_phase("", step)
"""


def script(folder, text):
    return sys.executable, "-c", BEGIN + textwrap.dedent(text), str(folder)


def stuck(folder, count, text, within=60):
    """Run processes of which one is stuck: what they say, by rank."""
    with pytest.raises(ProcessesFailed, match="ended with 75") as failed:
        Loopback(count).run(script(folder, text), timeout=within)
    return [each.stderr for each in failed.value.results]


@pytest.mark.parametrize(("who", "phase"), [(0, "evaluation"), (1, "compute")])
def test_a_process_that_is_stopped_is_named_by_the_others(tmp_path, who, phase):
    text = f"""
        with HangWatchdog(mine, 4, stacks) as watch:
            steps(watch, 30)
            if rank == {who}:
                watch.on_phase("input", 31)
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGSTOP)
            watch.on_phase({phase!r}, 31)
            time.sleep(600)
    """
    # An evaluation has 40 s: silence is no matter of phases.
    said = "".join(stuck(tmp_path, 3, text, within=30))
    assert said.count(f"stuck: rank {who}") >= 1
    assert "says nothing any more, is stopped or gone" in said
    assert f"stuck: rank {1 - who}" not in said


def test_a_process_that_is_behind_is_named_with_its_phase_and_line(tmp_path):
    text = """
        def reads_for_ever():
            time.sleep(600)

        with HangWatchdog(mine, 2, stacks) as watch:
            steps(watch, 30)
            if rank == 1:
                watch.on_phase("input", 31)
                reads_for_ever()
            steps(watch, 1)
            watch.on_phase("compute", 31)
            time.sleep(600)
    """
    said = "".join(stuck(tmp_path, 2, text))
    assert "stuck: rank 1 in step 31, input, at " in said
    assert "(reads_for_ever)" in said
    written = [path.name for path in sorted(tmp_path.iterdir())]
    assert written
    assert "most recent call first" in (tmp_path / written[0]).read_text()


def test_a_process_on_its_own_says_where_it_is(tmp_path):
    text = """
        with HangWatchdog(mine, 1, stacks) as watch:
            steps(watch, 30)
            watch.on_phase("compute", 31)
            time.sleep(600)
    """
    (said,) = stuck(tmp_path, 1, text)
    assert said.startswith("stuck: rank 0 in step 31, compute, for 1 s, at ")


def test_what_takes_long_by_its_nature_is_left_alone(tmp_path):
    text = """
        with HangWatchdog(mine, 0.4, stacks) as watch:
            for phase in "compile", "compute", "checkpoint", "evaluation":
                watch.on_phase(phase, 1)
                time.sleep(1)
                watch.on_phase("", 1)
            steps(watch, 20)
            for phase in "checkpoint", "evaluation":
                watch.on_phase(phase, 20)
                time.sleep(1)
                watch.on_phase("", 20)
    """
    Loopback(2).run(script(tmp_path, text), timeout=60)


def test_processes_that_were_all_stopped_and_go_on_are_left_alone(tmp_path):
    text = """
        import subprocess
        with HangWatchdog(mine, 2, stacks) as watch:
            steps(watch, 30)
            watch.on_phase("compute", 31)
            pid = os.getpid()
            wakes = f"sleep 4; kill -CONT {pid}"
            subprocess.Popen(["sh", "-c", wakes])
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.5)
    """
    Loopback(2).run(script(tmp_path, text), timeout=60)


def test_processes_may_speak_for_the_first_time_while_it_looks(tmp_path):
    watch = HangWatchdog(ProcessGroup(rank=1, size=2), 60, tmp_path)
    heard, is_over = watch._last_heartbeats, threading.Event()
    heard.update(dict.fromkeys(range(1000), (0, 0.0)))

    def speak():
        while not is_over.is_set():
            heard.update({-rank: (0, 0.0) for rank in range(1, 1000)})
            for rank in range(1, 1000):
                del heard[-rank]

    thread, interval = threading.Thread(target=speak), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(3000):
            watch._check_heartbeats(time.monotonic())
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_without_a_limit_nothing_is_watched(tmp_path):
    text = """
        with HangWatchdog(mine, 0, stacks) as watch:
            steps(watch, 3)
            watch.on_phase("compute", 31)
            time.sleep(1)
    """
    Loopback(1).run(script(tmp_path, text), timeout=60)


def said(number, beat, step=7, phase="compute"):
    return ProcessHeartbeat(
        number=number, step=step, phase=phase, beat=beat, line="x.py:1 (f)"
    )


def found(before, after, rank=0, count=3):
    mine = ProcessGroup(rank=rank, size=count)
    return diagnose_hang(before, after, mine, after.get(rank, said(9, 9)), 60.0)


def test_who_never_spoke_is_silent():
    told = found({0: said(9, 1), 2: said(9, 1)}, {0: said(9, 2), 2: said(9, 2)})
    assert told.text.startswith("stuck: rank 1, last in no step: it says nothing")
    assert told.speaker == 0


def test_where_nobody_is_behind_all_wait_for_each_other():
    told = found(
        {r: said(9, 1) for r in range(3)}, {r: said(9, 2) for r in range(3)}, rank=1
    )
    assert told.text.startswith("stuck: no rank is behind, all are in step 7, compute")


@pytest.mark.parametrize(
    ("phase", "steps_s", "want"),
    [
        ("compute", [0.1] * 9, 60),
        ("input", [10.0] * 9, 200),
        ("evaluation", [0.1] * 9, 600),
        ("checkpoint", [0.1] * 9, 600),
        ("compile", [], 3600),
        ("compute", [], 600),
    ],
)
def test_every_phase_has_its_limit(phase, steps_s, want):
    assert phase_limit_s(phase, 60, steps_s) == want


def test_a_limit_below_zero_is_refused():
    with pytest.raises(BadInput, match=r"run\.hang_timeout_s is above 0"):
        RunConfig(hang_timeout_s=-1)


def test_a_stuck_run_is_started_again(tmp_path, job):
    """The launcher ends a process that is stopped, which cannot end itself."""
    text = """
        first = not (stacks / f"begun-{rank}").exists()
        with HangWatchdog(mine, 2, stacks) as watch:
            steps(watch, 30)
            time.sleep(1)
            (stacks / f"begun-{rank}").touch()
            if first and rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            if first:
                watch.on_phase("compute", 31)
                time.sleep(600)
    """
    how = "launch", "local", "-n", 2, "--restarts", 1, "--"
    code, _, err = job.run(*how, *script(tmp_path, text))
    assert code == 0, err
    assert "stuck: rank 1" in err
    assert "restart 1 of 1" in err
