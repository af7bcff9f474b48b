"""The straggler line: who is slow is named, in what, and nobody where all are alike."""

import json
import re
import sys
import textwrap

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.config import RunConfig
from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.training.monitor.stragglers import (
    ProcessStepTime,
    find_stragglers,
)

BEGIN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.distributed import initialize
from jaxdist.launch.training.monitor.stragglers import StragglerMonitor

rank, path = initialize(), Path(sys.argv[1])
mine = process_group()

def computes(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

# Steps whose end is that of all, as in a sum over processes.
def steps(*windows, every=10):
    with StragglerMonitor(mine, every, print, path, on_cpu=True) as slow:
        for step in range(1, every * len(windows) + 2):
            how = dict(reads=0, works=0.01, waited_for=True)
            how |= windows[min((step - 1) // every, len(windows) - 1)]
            slow.on_phase("input", step)
            time.sleep(how["reads"])
            slow.on_phase("", step)
            if how["waited_for"]:
                slow.on_input_starvation()
            slow.on_phase("compute", step)
            computes(how["works"])
            mine.barrier(f"{step}", 60)
            slow.on_phase("", step)
        time.sleep(2)
"""


def told(folder, text, count=2):
    """Run processes: what process 0 says of each window, by its last step."""
    kept = folder / "slow.jsonl"
    script = sys.executable, "-c", BEGIN + textwrap.dedent(text), str(kept)
    done = Loopback(count).run(script, timeout=100)
    first, *others = (each.stdout.splitlines() for each in done)
    assert not any(others)
    rows = kept.read_text().splitlines() if kept.exists() else []
    named = [int(line.split()[2]) for line in first]
    assert [json.loads(row)["rank"] for row in rows] == named
    windows = {}
    for line in first:
        last = int(re.search(r"steps \d+-(\d+)", line)[1])
        windows.setdefault(last, []).append(line)
    return windows


def unlucky(line):
    """Whether others had the processor, on this machine or below it: a true line."""
    return "it waits for a processor" in line or "it stands still" in line


def test_who_is_slow_is_named_with_the_phase_and_nobody_else(tmp_path):
    text = """
        first, last = rank == 1, rank == 2
        steps(
            {},
            dict(reads=0.04 * first),
            dict(works=0.01 + 0.04 * last),
            dict(reads=0.04 * first, waited_for=False),
            dict(reads=0.02),
        )
    """
    lines = told(tmp_path, text, count=3)
    for until, said in (
        (20, r"slow: rank 1 \(.+\) is \d+ ms a step behind in input, steps 11-20; a "),
        (30, r"slow: rank 2 .* behind in compute, its threads compute longer, "),
    ):
        (line,) = (line for line in lines.pop(until) if not unlucky(line))
        assert re.match(said, line)
    # Input for which no device waited is not slow, nor is anybody where all are alike.
    assert not [line for said in lines.values() for line in said if not unlucky(line)]


def test_a_process_that_stands_still_again_and_again_is_named(tmp_path):
    text = """
        pulses = f"while kill -STOP {os.getpid()}; do sleep 0.15; " \
            f"kill -CONT {os.getpid()}; sleep 0.1; done"
        stopped = [subprocess.Popen(["sh", "-c", pulses]) for _ in range(rank)]
        # It computes for most of a step, so that is where it is mostly stopped.
        steps(dict(works=0.04), dict(works=0.04), every=20)
        for pulse in stopped:
            pulse.kill()
            pulse.wait()
    """
    (line,) = told(tmp_path, text)[40]
    assert re.match(r"slow: rank 1 .* behind in compute, it stands still, ", line)


@pytest.mark.system  # Linux alone says how long threads wait, and ties them to a core
def test_a_process_that_gets_no_processor_is_named(tmp_path):
    text = """
        if rank == 1:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        burns = [sys.executable, "-c", "while True: pass"]
        burning = [subprocess.Popen(burns) for _ in range(3 * rank)]
        steps({}, {})
        for each in burning:
            each.kill()
            each.wait()
    """
    (line,) = told(tmp_path, text)[20]
    assert re.match(r"slow: rank 1 .* in compute, it waits for a processor, ", line)


def share(**own_s):
    return ProcessStepTime(host="h", first=1, last=10, step_s=0.1, own_s=own_s)


def test_each_slow_process_has_the_phase_it_is_slowest_in():
    usual = share(input=0.01, checkpoint=0.01)
    found = find_stragglers([usual, share(input=0.05, checkpoint=0.09), usual, usual])
    assert [(late.rank, late.phase) for late in found] == [(1, "checkpoint")]
    assert found[0].seconds == pytest.approx(0.08)


def test_threads_that_compute_for_the_input_are_slow_in_input():
    found = find_stragglers(
        [share(input=0.05, compute=0.06), share(input=0.0, compute=0.01)]
    )
    assert [(late.rank, late.phase) for late in found] == [(0, "input")]


def test_what_is_a_small_part_of_a_step_is_no_matter():
    assert (
        find_stragglers([share(input=0.012), share(input=0.0), share(input=0.0)]) == []
    )


def test_one_process_is_behind_nobody():
    assert find_stragglers([share(input=9.0)]) == []


def test_a_distance_below_zero_is_refused():
    with pytest.raises(BadInput, match=r"run\.straggler_interval is a number of steps"):
        RunConfig(straggler_interval=-1)
