"""Step lists between real processes: the sum, the same bits, the bytes of the formula."""

from pathlib import Path

import pytest
from rows import rows_of

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.testbed.hosts import EmulatedCluster

WORKER = Path(__file__).with_name("collective_schedule_worker.py")
POWERS_ONLY = {"swing", "striped_halving_doubling"}


@pytest.mark.laws
@pytest.mark.timeout(300)
def test_processes_end_with_the_same_bits_and_the_sum():
    names = sorted(set(SCHEDULES) - POWERS_ONLY)
    found = rows_of(Loopback(3), WORKER, names, 1001, False)
    assert [ranks[0]["name"] for ranks in found] == names
    for ranks in found:
        assert len({rank["digest"] for rank in ranks}) == 1
        assert ranks[0]["error"] <= 2e-6


@pytest.mark.system
@pytest.mark.hosts
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_every_interface_counts_what_the_formula_says(count):
    with EmulatedCluster(count, "1gbit", disable_gso=True) as hosts:
        found = rows_of(hosts, WORKER, sorted(SCHEDULES), 1 << 20, True)
    assert len(found) == len(SCHEDULES)
    for ranks in found:
        for rank, row in enumerate(ranks):
            # TCP only adds to it, by frames that it sends again in some rounds: the
            # least of them is what was asked for. Acknowledgements have no payload.
            sent, said = min(row["sent"]), row["formula"]
            assert sent == pytest.approx(said, rel=0.03), (row["name"], rank)
