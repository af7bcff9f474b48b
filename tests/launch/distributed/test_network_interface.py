"""Processes tell each other addresses that lead between them, and not to themselves."""

import sys

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.jax_processes import (
    common_address,
    interface_address,
    is_loopback,
    peer_facing_address,
    source_address,
)
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.testbed.hosts import EmulatedCluster

ASK = """
from jaxdist.launch.distributed.jax_processes import peer_facing_address
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.distributed import initialize
initialize()
print(peer_facing_address(process_group()))
"""


def test_processes_of_one_machine_meet_on_loopback():
    done = Loopback(2).run((sys.executable, "-c", ASK), timeout=60)
    assert [each.stdout for each in done] == ["127.0.0.1\n"] * 2


def test_a_process_alone_has_no_way_to_go():
    assert peer_facing_address(ProcessGroup()) == "127.0.0.1"


def test_who_finds_process_0_at_home_takes_the_way_to_another():
    told = ["127.0.0.1", "127.0.1.1", "127.0.0.1"]
    assert common_address("127.0.1.1", told) == "127.0.1.1"
    # Whoever is reached from elsewhere has said so already.
    assert common_address("10.1.2.3", [*told, "10.1.2.3"]) == "10.1.2.3"
    far = "127.1.2.3"  # loopback's own network: a way that every machine has
    assert source_address(far).startswith("127.")


def test_an_interface_has_its_address():
    assert interface_address("lo") == "127.0.0.1"
    assert peer_facing_address(ProcessGroup(), "lo") == "127.0.0.1"
    with pytest.raises(BadInput, match="no interface ib7") as caught:
        interface_address("ib7")
    assert "lo" in caught.value.values


@pytest.mark.system
@pytest.mark.hosts
def test_hosts_are_reached_on_the_network_between_them():
    """Process 0 reaches itself at home, and takes the way to another."""
    with EmulatedCluster(2, "200mbit") as hosts:
        done = hosts.run((sys.executable, "-c", ASK), timeout=60)
        said = [each.stdout.strip() for each in done]
        assert len(set(said)) == 2
        assert not any(is_loopback(address) for address in said)
