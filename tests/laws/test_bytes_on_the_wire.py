"""Law 3: bytes by formula are those of the compiled program and those on the wire."""

import json
import os
import statistics
import sys
from pathlib import Path

import pytest

from jaxdist.launch.joined import Loopback
from jaxdist.launch.links import framed
from jaxdist.launch.testbed import Hosts

WORKER = Path(__file__).with_name("wire_worker.py")
MIB = 1 << 18
"""Elements of a mebibyte of float32."""

# Bytes that each of P hosts sends for S bytes on each (Thakur et al. 2005).
FORMULAS = {
    "psum": lambda p, s: 2 * (p - 1) * s // p,
    "psum_scatter": lambda p, s: (p - 1) * s // p,
    "all_gather": lambda p, s: (p - 1) * s,
    "all_to_all": lambda p, s: (p - 1) * s // p,
    "ppermute": lambda p, s: s,
}


def rows(hosts, names, sizes, *, wired):
    """Run the methods on all hosts: for each method and size a row of every rank."""
    given = json.dumps([list(names), list(sizes), wired])
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = hosts.run((sys.executable, str(WORKER), given), timeout=280, env=env)
    each = [[line for line in r.out.splitlines() if line[:1] == "{"] for r in done]
    return [[json.loads(line) for line in ranks] for ranks in zip(*each, strict=True)]


def swapped(name, rank, count):
    """Tell whether gloo makes a rank send the sum that it got to another one.

    Its reduce-scatter halves the ranks from the nearest on, so the sums come out in the
    order of reversed bits, and every rank that holds another's sends it there.
    """
    bits = count.bit_length() - 1
    reverse = int(f"{rank:0{bits}b}"[::-1], 2)
    return name == "psum_scatter" and reverse != rank


@pytest.mark.laws
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, 4])
def test_what_real_processes_compile_moves_what_the_formula_says(count):
    found = rows(Loopback(count), FORMULAS, [MIB], wired=False)
    assert len(found) == len(FORMULAS)
    for ranks in found:
        name = ranks[0]["name"]
        said = FORMULAS[name](count, 4 * MIB)
        for row in ranks:
            assert row["stablehlo"] == row["compiled"] == said, name


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, 4])
def test_an_interface_counts_what_the_formula_says(count):
    with Hosts(count, "1gbit", frames=True) as hosts:
        found = rows(hosts, FORMULAS, [MIB, 4 * MIB], wired=True)
    assert len(found) == 2 * len(FORMULAS)
    for ranks in found:
        for rank, row in enumerate(ranks):
            name, size = row["name"], 4 * row["elements"]
            extra = size // count if swapped(name, rank, count) else 0
            said = framed(row["compiled"] + extra)
            near = 0.03 if size >= 4 << 20 else 0.05
            sent = statistics.median(row["sent"])
            assert sent == pytest.approx(said, rel=near), (name, size, rank)
