"""Law 3: bytes by formula are those of the compiled program and those on the wire."""

import math
from pathlib import Path

import numpy as np
import pytest
from rows import rows_of

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.compress.method import ReduceScatterAllReduce
from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS
from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.testbed.hosts import EmulatedCluster

WORKER = Path(__file__).with_name("wire_worker.py")
SQUARE = (1024, 1024)
"""4 MiB of float32 on each host."""
SMALL = (512, 512)

# Bytes that each of P hosts sends for S bytes on each (Thakur et al. 2005).
PLAIN = {
    "psum": lambda p, s: 2 * (p - 1) * s // p,
    "psum_scatter": lambda p, s: (p - 1) * s // p,
    "all_gather": lambda p, s: (p - 1) * s,
    "all_to_all": lambda p, s: (p - 1) * s // p,
    "ppermute": lambda p, s: s,
}


def family(count):
    """Name every way to sum on so many hosts; step lists have a law of their own."""
    ways = {
        via: way for via, way in ALL_REDUCE_ALGORITHMS.items() if via not in SCHEDULES
    }
    sums = [f"psum {via}" for via in ways if via != "hierarchical" or count > 2]
    scatters = [
        via for via, way in ways.items() if isinstance(way, ReduceScatterAllReduce)
    ]
    return [*sums, *(f"psum_scatter {via}" for via in scatters)]


def formula(name, shape, count):
    """Bytes that a host sends."""
    kind, _, via = name.partition(" ")
    if not via:
        return PLAIN[kind](count, 4 * math.prod(shape))
    two = {"data": count // 2, "fsdp": 2}
    sizes = two if via == "hierarchical" else {"data": count}
    if kind == "psum_scatter":
        moved = ALL_REDUCE_ALGORITHMS[via].reduce_scatter_payloads(
            math.prod(shape) // count, 4, sizes
        )
    else:
        moved = ALL_REDUCE_ALGORITHMS[via].payloads([shape], np.dtype("f4"), sizes)
    return sum(
        wire_bytes(p.kind, p.payload_bytes, math.prod(sizes[a] for a in p.axes))
        for p in moved
    )


def found(hosts, names, shape, *, wired):
    """Run the methods on all hosts: for each a row of every rank."""
    rows = rows_of(hosts, WORKER, list(names), shape, wired)
    assert [ranks[0]["name"] for ranks in rows] == list(names)
    return rows


def total(row, column):
    return sum(each[column] for each in row["rows"])


def swapped(row, rank):
    """Bytes that gloo has a rank send on, because the sum it got is another's.

    Its reduce-scatter halves the ranks from the nearest on, so the sums come out in the
    order of reversed bits, and every rank that holds another's sends it there.
    """
    extra = 0
    for each in row["rows"]:
        bits = each["group"].bit_length() - 1
        inside = rank % each["group"]
        reverse = int(f"{inside:0{bits}b}"[::-1], 2)
        if each["kind"] == "reduce-scatter" and reverse != inside:
            extra += each["compiled"] // (each["group"] - 1)
    return extra


@pytest.mark.laws
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_what_real_processes_compile_moves_what_the_formula_says(count):
    names = [*PLAIN, *family(count)]
    for ranks in found(Loopback(count), names, SMALL, wired=False):
        name = ranks[0]["name"]
        for row in ranks:
            said = formula(name, SMALL, count)
            assert total(row, "stablehlo") == total(row, "compiled") == said, name


@pytest.mark.system
@pytest.mark.hosts
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(("shape", "near"), [(SMALL, 0.05), (SQUARE, 0.03)])
def test_interfaces_count_what_plain_collectives_send(count, shape, near):
    with EmulatedCluster(count, "1gbit", disable_gso=True) as hosts:
        rows = found(hosts, PLAIN, shape, wired=True)
    for ranks in rows:
        for rank, row in enumerate(ranks):
            name = row["name"]
            said = formula(name, shape, count) + swapped(row, rank)
            sent = min(row["sent"])  # others have frames that TCP sent again
            assert sent == pytest.approx(said, rel=near), (name, rank)


@pytest.mark.system
@pytest.mark.hosts
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_interfaces_count_what_every_way_to_sum_sends(count):
    with EmulatedCluster(count, "1gbit", disable_gso=True) as hosts:
        rows = found(hosts, family(count), SQUARE, wired=True)
    for ranks in rows:
        for rank, row in enumerate(ranks):
            name = row["name"]
            said = formula(name, SQUARE, count) + swapped(row, rank)
            # Few bytes: messages have headers and acknowledgements of up to 1 kB, and a
            # way to sum has two collectives of at most 2 (P - 1) messages.
            small = 1000 * 2 * 2 * (count - 1)
            sent = min(row["sent"])  # others have frames that TCP sent again
            assert said * 0.95 < sent < said * 1.05 + small, (name, rank)
