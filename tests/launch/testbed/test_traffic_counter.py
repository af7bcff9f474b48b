import os
import re
import sys
from pathlib import Path

import pytest

from jaxdist.launch.testbed.hosts import EmulatedCluster


@pytest.mark.system
@pytest.mark.hosts
@pytest.mark.timeout(120)
def test_what_a_stopped_receiver_has_not_taken_yet_is_counted():
    worker = Path(__file__).with_name("traffic_worker.py")
    with EmulatedCluster(2, "1gbit", disable_gso=True) as hosts:
        env = {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = hosts.run((sys.executable, str(worker)), timeout=100, env=env)
    sent = [int(n) for n in re.findall(r"sent (\d+)", done[0].stdout)]
    assert len(sent) == 10
    # TCP may send a frame again: never less than the array, and seldom much more.
    assert min(sent) == pytest.approx(4 << 20, rel=0.03)
