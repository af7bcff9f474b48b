"""Process 0 listens where the others are told, and elsewhere only if it must."""

import socket
import sys

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed import coordinator_address
from jaxdist.launch.distributed.coordinator_address import listen_address
from jaxdist.launch.distributed.jax_processes import peer_facing_address
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.launchers.processes.loopback import Loopback

BIND = "JAX_COORDINATOR_BIND_ADDRESS"


def names(monkeypatch, **known):
    """What names stand for on this machine."""

    def look_up(host, port, **_):
        if host not in known:
            raise socket.gaierror("not known")
        return [(0, 0, 0, "", (ip, 0)) for ip in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_an_address_of_this_machine_is_the_one():
    assert listen_address("127.0.0.1:80", {}) == ("127.0.0.1", 80)
    assert listen_address("127.0.1.1:80", {}) == ("127.0.1.1", 80)


def test_one_of_another_machine_forwards_here():
    assert listen_address("192.0.2.1:80", {}) == ("", 80)
    assert listen_address("0.0.0.0:80", {}) == ("", 80)


def test_a_name_is_what_it_stands_for(monkeypatch):
    monkeypatch.setattr(coordinator_address, "_is_local", lambda ip: ip != "192.0.2.1")
    names(
        monkeypatch,
        one=["10.0.0.3"],
        far=["192.0.2.1"],
        many=["10.0.0.3", "10.1.0.3"],
        debian=["127.0.1.1"],
        localhost=["192.0.2.1", "127.0.0.1"],
    )
    hosts = {
        name: listen_address(f"{name}:80", {})[0]
        for name in ("one", "far", "many", "debian", "localhost", "unknown")
    }
    assert hosts == {
        "one": "10.0.0.3",
        "far": "",
        "many": "",
        "debian": "",
        "localhost": "127.0.0.1",
        "unknown": "",
    }


def test_jax_s_own_variable_decides():
    assert listen_address("node1:80", {BIND: "10.0.0.3:81"}) == ("10.0.0.3", 81)
    assert listen_address("127.0.0.1:80", {BIND: "[::]:81"}) == ("", 81)
    assert listen_address("127.0.0.1:80", {BIND: "0.0.0.0:81"}) == ("", 81)
    with pytest.raises(BadInput, match="where to listen") as refused:
        listen_address("node1:80", {BIND: "10.0.0.3"})
    assert BIND in refused.value.rule


LISTENS = """
import os
import psutil
from jaxdist.launch.distributed import initialize
from jaxdist.launch.distributed.process_group import process_group

rank = initialize()
port = int(os.environ["JAXDIST_COORDINATOR"].rpartition(":")[2])
if rank == 0:
    print({
        c.laddr.ip.removeprefix("::ffff:") for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port
    })
process_group().barrier("done")
"""


def test_jax_listens_there_alone():
    first, _ = Loopback(2).run((sys.executable, "-c", LISTENS), timeout=60)
    assert first.stdout == "{'127.0.0.1'}\n"


class Store:
    """A key-value store in which somebody has put another text."""

    def __init__(self, text):
        self.text = text

    def blocking_key_value_get(self, key, ms):
        return self.text

    def key_value_set(self, key, text, **_):
        pass


@pytest.mark.parametrize(
    "text", ['["10.0.0.3", "evil.example"]', "[7]", '"10.0.0.3:80"', "null", "[[]]"]
)
def test_addresses_of_the_store_are_read_as_data(monkeypatch, text):
    path = "jaxdist.launch.distributed.jax_processes.coordinator_host"
    monkeypatch.setattr(path, lambda: "127.0.0.1")
    group = ProcessGroup(rank=1, size=2, kv_store=Store(text))
    with pytest.raises(BadInput, match="cannot be reached where it says"):
        peer_facing_address(group)
