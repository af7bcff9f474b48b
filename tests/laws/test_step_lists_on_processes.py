"""Step lists between real processes: the sum, the same bits, the bytes of the formula."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jaxdist.collectives.algorithms.registry import ALGORITHMS

WORKER = Path(__file__).with_name("step_list_worker.py")
POWERS_ONLY = {"swing", "striped_halving_doubling"}
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Words before a command that give it a loopback of its own."""
START = """
import json, subprocess, sys, tempfile
worker, count, *given = json.loads(sys.argv[1])
said = [tempfile.TemporaryFile("w+") for _ in range(count)]  # a pipe would fill up
run = lambda rank: [sys.executable, worker, json.dumps([rank, count, *given])]
ranks = [subprocess.Popen(run(i), stdout=file) for i, file in enumerate(said)]
assert not any([rank.wait() for rank in ranks])
texts = [file.seek(0) or file.read() for file in said]
rows = [[json.loads(l) for l in t.splitlines() if l[:1] == "{"] for t in texts]
print(json.dumps(rows))
"""
"""Starts a worker a rank, waits for all, and prints what they said."""


def rows(job, count, size, names, prefix=()):
    """Run lists on so many processes: for each list a row of every rank."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    given = json.dumps([str(WORKER), count, port, size, names])
    env = job.env | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    command = [*prefix, sys.executable, "-c", START, given]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(zip(*json.loads(done.stdout), strict=True))


@pytest.mark.laws
@pytest.mark.timeout(300)
def test_processes_end_with_the_same_bits_and_the_sum(job):
    names = sorted(set(ALGORITHMS) - POWERS_ONLY)
    found = rows(job, 3, 1001, names)
    assert [ranks[0]["name"] for ranks in found] == names
    for ranks in found:
        assert len({rank["digest"] for rank in ranks}) == 1
        assert ranks[0]["error"] <= 2e-6


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, 4])
def test_loopback_carries_what_the_formula_says(job, count):
    found = rows(job, count, 1 << 20, sorted(ALGORITHMS), ALONE)
    assert len(found) == len(ALGORITHMS)
    for row, *_ in found:
        assert row["carried"] == pytest.approx(row["formula"], rel=0.03), row["name"]
