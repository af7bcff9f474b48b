"""Laws 6 and 7 under faults: a run that was harmed ends as one that was left alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.laws, pytest.mark.slow, pytest.mark.timeout(900)]

SOAK = Path(__file__).parents[2] / "benchmarks" / "faults.py"


def test_eight_faults_change_no_step_no_loss_and_no_bit(job):
    """Killed, asked to end, stopped and damaged, at moments that a seed chooses."""
    words = "soak", "--trials", 8, "--hang-s", 10, "--data", job.data
    done = subprocess.run(
        [sys.executable, SOAK, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=job.env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *trials, differ = map(json.loads, done.stdout.splitlines())
    assert len(trials) == 8
    assert {row["fault"] for row in trials} >= {"kill", "term", "stop"}
    assert all(row["named"] for row in trials if row["fault"] == "stop")
    assert all(row["lost_steps"] == 0 for row in trials if row["fault"] == "term")
    assert not any(differ.values())
