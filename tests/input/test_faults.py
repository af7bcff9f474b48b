"""Four processes, one of them in trouble: training reads what the order says.

`benchmarks/input_faults.py` holds every batch against the data set and against the
order, and fails where one differs; here it runs small, once a fault.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[2] / "benchmarks" / "input_faults.py"
SMALL = ("--samples", 2048, "--compute", 0.02, "--floats", 1024)
SHARE, STEP = 2048 // 4, 64 // 4


def measured(fault, deadline=30):
    """On a busy machine as well: only who is stopped is too late for a deadline."""
    words = [sys.executable, FAULTS, "--json", "--faults", fault, *SMALL]
    words += ["--deadline", deadline]
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_nothing_is_lost(found):
    """Whatever came, came from peers or the data set."""
    assert found["from_peers"] + found["dataset_reads"] == found["received"] > 0


def test_without_faults_peers_bring_most():
    found = measured("none")
    assert_nothing_is_lost(found)
    assert found["dataset_reads"] < 0.5 * found["received"]
    assert (found["bad"], found["capacity_misses"]) == (0, 0)
    assert found["peak"] <= 4 * (SHARE + 2 * STEP)


@pytest.mark.parametrize("fault", ["killed", "stalled"])
def test_a_peer_that_is_gone_for_an_epoch_costs_reads_of_the_data_set(fault):
    found = measured(fault, deadline=1)
    assert_nothing_is_lost(found)
    assert found["dataset_reads"] > 0
    assert found["failed"] > 0


def test_every_flipped_sample_is_caught():
    found = measured("flipped")
    assert_nothing_is_lost(found)
    assert found["bad"] == found["flipped"] >= 4
    assert found["dataset_reads"] >= found["bad"]


def test_duplicates_and_what_nobody_asked_for_are_left():
    found = measured("duplicates")
    assert_nothing_is_lost(found)
    assert found["bad"] == 0
    assert found["peak"] <= 4 * (SHARE + 2 * STEP)


def test_a_host_without_room_reads_the_data_set():
    found = measured("full")
    assert_nothing_is_lost(found)
    assert found["capacity_misses"] >= SHARE - 1
    assert found["store_misses"] >= 4 * (SHARE - 1)
