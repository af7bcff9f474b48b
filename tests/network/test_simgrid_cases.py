"""Times equal those of SimGrid 3.32, unequal latencies and bandwidths included.

Written by `python benchmarks/network_simgrid.py --write tests/network/simgrid_cases.json`
(a part of its cases), with the precision flags that the benchmark names.
"""

import json
from pathlib import Path

import pytest

from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.topologies.registry import make_topology

CASES = json.loads((Path(__file__).parent / "simgrid_cases.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['name']}-{c['network']}")
def test_times_are_those_of_simgrid(case):
    made = make_topology(case["network"], case["ranks"], case["settings"])
    steps = schedule_by_name(case["name"], case["ranks"])
    size = float(case["chunk"] * steps.chunks)
    found = simulate_collective(steps, size, NetworkModel(topology=made, sharing="rtt"))
    assert found.seconds == pytest.approx(case["seconds"], rel=1e-9)
