"""Laws 6 and 7 under faults: a run that was harmed ends as one that was left alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "faults.py"


def soak(job, *words):
    """Do eight faults, and return what each of them came to, and what is wrong."""
    done = subprocess.run(
        [sys.executable, SOAK, "soak", "--faults", "8", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=job.env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *rows, end = map(json.loads, done.stdout.splitlines())
    return rows, end


def check(rows, end, kinds):
    assert len(rows) == 8
    assert {row["kind"] for row in rows} >= kinds
    for row in rows:
        if row["kind"] == "stop":
            assert f"rank {row['rank']}" in row["said"].partition(";")[0]
        if row["kind"] == "term":
            assert row["lost"] == 0
        assert row.get("said") != "nothing"
    assert not any(end["wrong"].values())


@pytest.mark.laws
@pytest.mark.timeout(600)
def test_eight_faults_change_no_step_no_loss_no_sample_and_no_bit(job):
    """Killed, asked to end, stopped and damaged, at moments that a seed chooses."""
    rows, end = soak(job, "--hang-s", 6)
    check(rows, end, {"kill", "term", "stop", "damage"})


@pytest.mark.system
@pytest.mark.hosts
@pytest.mark.timeout(900)
def test_nor_do_links_that_are_cut_or_slow_and_a_full_disk(job):
    rows, end = soak(job, "--hang-s", 6, "--hosts", 2)
    check(rows, end, {"kill", "term", "stop", "damage", "cut", "slow", "disk"})
