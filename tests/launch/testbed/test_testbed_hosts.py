"""Hosts in a box: links that hold their rate, counters, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.launchers.processes.group import ProcessesFailed
from jaxdist.launch.launchers.processes.loopback import process_specs
from jaxdist.launch.testbed import hosts as testbed
from jaxdist.launch.testbed.hosts import EmulatedCluster, cpus_per_host
from jaxdist.launch.testbed.namespaces import run_command

system = [pytest.mark.system, pytest.mark.hosts, pytest.mark.timeout(300)]

SENDS = """
import socket, sys, time
from jaxdist.launch.distributed.environment import rank_assignment

rank, count, coordinator = rank_assignment()
address, port = coordinator.split(":")
if rank == 0:
    with socket.create_server((address, int(port))) as server:
        peer, _ = server.accept()
        left = 5_000_000
        while left:
            left -= len(peer.recv(min(left, 1 << 20)))
        peer.sendall(b"x")
else:
    while True:
        try:
            peer = socket.create_connection((address, int(port)))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    start = time.monotonic()
    peer.sendall(bytes(5_000_000))
    peer.recv(1)
    print(time.monotonic() - start)
"""

MESSAGES = """
import socket, sys, threading
from jaxdist.launch.distributed.environment import rank_assignment

rank, count, coordinator = rank_assignment()
address, port = coordinator.split(":")

def receive(peer):
    while peer.recv(1 << 16):
        pass

def send():
    peer = socket.create_connection((address, int(port)))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Packets of a few frames: smaller than a bucket of 40mbit, larger than one of 4.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 12_000)
    while True:
        peer.sendall(bytes(5_000))

if rank == 0:
    server = socket.create_server((address, int(port)))
    print("listens", flush=True)
    while True:
        peer, _ = server.accept()
        threading.Thread(target=receive, args=(peer,), daemon=True).start()
for _ in range(12):
    threading.Thread(target=send).start()
"""


def python(text):
    return sys.executable, "-c", textwrap.dedent(text)


def left(name="jaxdist-"):
    done = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    spaces = [line for line in done.stdout.splitlines() if line.startswith(name)]
    folder = Path("/etc/netns")
    files = [p.name for p in folder.iterdir()] if folder.exists() else []
    return spaces + [file for file in files if file.startswith(name)]


def retransmissions(hosts, rank):
    """Return how many segments a host's TCP sent again: a busy peer drops some."""
    shown = run_command(*hosts.host_argv(rank, "cat", "/proc/net/snmp"))
    names, values = (line.split() for line in shown.splitlines() if line[:4] == "Tcp:")
    return int(values[names.index("RetransSegs")])


@pytest.fixture
def hosts():
    with EmulatedCluster(2, "40mbit") as hosts:
        yield hosts
    assert left(hosts.name_prefix) == []


class TestHosts:
    pytestmark = system

    def test_a_link_holds_its_rate_and_counts_what_it_sends(self, hosts):
        before = hosts.read_counters()
        seconds = float(hosts.run(python(SENDS), timeout=60)[1].stdout)
        assert seconds > 0.95  # 5 MB at 5 MB/s
        sent = [now - then for now, then in zip(hosts.read_counters(), before)]
        assert 5_000_000 < sent[1].tx_bytes < 5_000_000 * 1514 / 1448 * 1.03
        assert sent[0].tx_bytes < 500_000
        assert sent[0].rx_bytes == pytest.approx(sent[1].tx_bytes, rel=0.01)

    def test_the_rate_changes(self, hosts):
        hosts.set_rate("20mbit")
        assert float(hosts.run(python(SENDS), timeout=60)[1].stdout) > 1.9
        hosts.set_rate(None)
        assert float(hosts.run(python(SENDS), timeout=60)[1].stdout) < 0.95

    def test_a_link_that_is_cut_while_it_sends_sends_on(self, hosts):
        specs = process_specs([python(MESSAGES)], 2, hosts.coordinator(), {})
        first, second = hosts.place_processes(specs)
        with ExitStack() as stack:
            for spec in (first, second):
                env = spec.env
                process = subprocess.Popen(
                    spec.command, stdout=subprocess.PIPE, env=env
                )
                stack.callback(process.wait)
                stack.callback(process.kill)
                if spec is first:
                    assert process.stdout.readline() == b"listens\n"
            for rate, more in [("40mbit", 500_000), ("4mbit", 300_000)] * 3:
                hosts.set_host_rate(1, rate)
                want = hosts.read_counters()[0].rx_bytes + more
                end = time.monotonic() + 60
                while (have := hosts.read_counters()[0].rx_bytes) < want:
                    assert time.monotonic() < end, f"{have} of {want} bytes at {rate}"
                    time.sleep(0.1)

    def test_whole_frames_are_counted_with_their_headers(self):
        with EmulatedCluster(2, disable_gso=True) as hosts:
            hosts.run(python(SENDS), timeout=60)
            sent = hosts.read_counters()[1].tx_bytes
            sent -= retransmissions(hosts, 1) * 1514
        assert sent == pytest.approx(5_000_000 * 1514 / 1448, rel=0.01)

    def test_a_name_of_the_machine_is_the_host_itself(self, hosts):
        text = "import socket; print(socket.gethostbyname(socket.gethostname()))"
        found = hosts.run(python(text))
        assert [r.stdout.strip() for r in found] == ["10.77.0.1", "10.77.0.2"]

    def test_hosts_have_processors_of_their_own(self, hosts):
        text = "import os; print(*sorted(os.sched_getaffinity(0)))"
        found = [done.stdout.split() for done in hosts.run(python(text))]
        own = cpus_per_host(os.sched_getaffinity(0), 2)
        assert found == [[str(one) for one in each] for each in own]

    def test_a_host_that_fails_ends_the_others(self, hosts):
        text = "import sys, time; time.sleep(600 * {0}); sys.exit('broken')"
        with pytest.raises(ProcessesFailed, match=r"(?s)process 0 of 2.*broken"):
            hosts.run(python(text.format(0)), python(text.format(1)))

    def test_down_twice_is_down(self, hosts):
        hosts.teardown()
        hosts.teardown()
        assert left(hosts.name_prefix) == []

    def test_two_at_once_do_not_meet(self, hosts):
        with EmulatedCluster(2, "40mbit") as other:
            text = "import time; time.sleep(0.1)"
            other.run(python(text))
            hosts.run(python(text))
        assert hosts.read_counters()

    def test_names_without_hosts_are_removed_too(self):
        folder = Path("/etc/netns/jaxdist-99999999-abcd-0")
        folder.mkdir(parents=True)
        testbed.remove_orphans()
        assert not folder.exists()

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
    def test_what_an_end_leaves_the_next_removes(self, how):
        text = """
            import signal, sys
            from jaxdist.launch.testbed.hosts import EmulatedCluster
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with EmulatedCluster(2, "40mbit") as hosts:
                print(hosts.name_prefix, flush=True)
                hosts.run([sys.executable, "-c", "import time; time.sleep(600)"])
        """
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(python(text), text=True, **quiet) as parent:
            name = parent.stdout.readline().strip()
            time.sleep(0.5)
            parent.send_signal(how)
        assert bool(left(name)) == (how == signal.SIGKILL)
        testbed.remove_orphans()
        assert left(name) == []


def test_what_cannot_make_hosts_is_refused(monkeypatch):
    with pytest.raises(BadInput, match="rate is a number"):
        EmulatedCluster(2, "quick")
    with pytest.raises(BadInput, match="1 to 64"):
        EmulatedCluster(0)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BadInput, match="Linux, root"):
        EmulatedCluster(2)
