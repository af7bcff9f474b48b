"""`jaxdist testbed fail` and `mend`: harm to one host, at a step, and its end."""

import json
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxdist.launch.cli.main import main
from jaxdist.launch.testbed import health, manager, namespaces
from jaxdist.launch.testbed.namespaces import existing_namespaces

system = [pytest.mark.system, pytest.mark.hosts, pytest.mark.timeout(300)]
NET = Path(__file__).parents[3] / "benchmarks" / "faults_net.py"

PINGS = """
import os, socket, sys, time
host, port = os.environ["JAXDIST_COORDINATOR"].split(":")
if os.environ["JAXDIST_RANK"] == "0":
    with socket.create_server((host, int(port))) as server:
        server.settimeout(2)
        try:
            peer, _ = server.accept()
        except TimeoutError:
            sys.exit("nobody came")
        while peer.recv(1 << 20):
            pass
else:
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        try:
            peer = socket.create_connection((host, int(port)), timeout=0.5)
            break
        except OSError:
            time.sleep(0.02)
    else:
        time.sleep(600)
    peer.settimeout(None)
    start = time.monotonic()
    peer.sendall(bytes(400_000))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
    print("took", time.monotonic() - start)
"""


def run_testbed(*words):
    return main(["testbed", *map(str, words)])


def python(text):
    return "--", sys.executable, "-c", text


@pytest.fixture
def two(capfd):
    assert not manager.netns_names(), "a testbed of this machine is up"
    assert run_testbed("up", "--hosts", 2, "--rate", "80mbit") == 0
    capfd.readouterr()
    yield
    manager.remove_testbed()


def started(job, folder, *words, code=NET):
    """Start a run that has no end, and return it."""
    train = "train", code, f"run.dir={folder}", "run.hang_timeout_s=10", "epochs=1000"
    how = "--devices-per-process", 1, *words
    return job.start("testbed", "run", *how, "--", *train)


class TestHarm:
    pytestmark = system

    def test_a_link_is_cut_and_is_there_again(self, two, capfd):
        assert run_testbed("fail", "h1", "--cut") == 0
        said = capfd.readouterr().out
        assert "h1: its link is cut" in said
        assert "jaxdist testbed mend h1" in said
        assert run_testbed("run", *python(PINGS)) == 1
        assert "nobody came" in capfd.readouterr().err
        assert run_testbed("mend", "h1") == 0
        assert "80mbit each way" in capfd.readouterr().out
        assert run_testbed("run", *python(PINGS)) == 0

    def test_a_link_is_slow_and_has_its_rate_again(self, two, capfd):
        assert run_testbed("fail", "h1", "--slow", "4mbit") == 0
        assert run_testbed("run", *python(PINGS)) == 0
        slow = float(re.search(r"took (\S+)", capfd.readouterr().out)[1])
        assert slow > 0.5  # 400 kB, 68 kB of them at once, at 500 kB/s
        run_testbed("mend", "h1")
        assert run_testbed("run", *python(PINGS)) == 0
        assert float(re.search(r"took (\S+)", capfd.readouterr().out)[1]) < slow / 2

    def test_a_host_dies_at_a_step(self, two, job, tmp_path, capfd):
        child = started(job, tmp_path)
        while not manager.load_testbed().pids(0):
            time.sleep(0.02)
        assert run_testbed("fail", "h1", "--kill", "--at-step", 30) == 0
        assert "h1: SIGKILL to all that runs there" in capfd.readouterr().out
        _, err = child.communicate()
        assert child.returncode == 128 + signal.SIGKILL
        assert "process 1 of 2 was ended by SIGKILL" in err
        rows = job.lines(tmp_path / "harmed" / "metrics.jsonl")
        assert rows[-1]["step"] >= 30

    def test_a_host_is_stopped_and_goes_on_when_mended(self, two, job, tmp_path, capfd):
        text = (
            "import time; [print(n, flush=True) or time.sleep(0.1) for n in range(99)]"
        )
        child = job.start("testbed", "run", *python(text))
        while not (there := manager.load_testbed().pids(1)):
            time.sleep(0.02)
        assert run_testbed("fail", "h1", "--stop") == 0
        comes_to(there[0], "T")
        assert run_testbed("mend", "h1") == 0
        comes_to(there[0], "RSD")
        child.terminate()
        child.communicate()

    def test_who_waits_for_a_step_is_told_that_the_run_has_ended(self, two, job, capfd):
        child = job.start("testbed", "run", *python("import time; time.sleep(1)"))
        while not manager.load_testbed().pids(0):
            time.sleep(0.02)
        assert run_testbed("fail", "h1", "--cut", "--at-step", 5) == 2
        assert "the run ended before step 5" in capfd.readouterr().err
        child.communicate()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("fail", "h3", "--cut"), "the hosts of this testbed are h0 to h1"),
            (("fail", "1", "--cut"), "did you mean h1?"),
            (("mend", "host1"), "did you mean h1?"),
            (("fail", "h1", "--kill"), "nothing runs on h1"),
            (("fail", "h1", "--cut", "--at-step", "5"), "no run is on these hosts"),
        ],
    )
    def test_what_cannot_be_done_is_said(self, two, words, said, capfd):
        assert run_testbed(*words) == 2
        assert said in capfd.readouterr().err

    def test_delays_are_there_or_the_kernel_is_said_to_lack_them(self, capfd):
        before = existing_namespaces()
        code = run_testbed("up", "--hosts", 2, "--delay", "20ms")
        try:
            if code:
                said = capfd.readouterr().err
                assert "this kernel delays no packets" in said
                assert "or the same without --delay" in said
                assert existing_namespaces() == before
            else:
                assert run_testbed("run", *python(PINGS)) == 0
                took = float(re.search(r"took (\S+)", capfd.readouterr().out)[1])
                assert took > 0.04
        finally:
            manager.remove_testbed()


def comes_to(pid, states):
    """Wait until a process is in one of these states: a signal takes a moment."""
    end = time.monotonic() + 20
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rsplit(")", 1)[1].split()[0] not in states:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ({"kind": "tbf", "options": {"rate": 25_000_000, "burst": 65536}}, "ok"),
        ({"kind": "tbf", "options": {"rate": 1_000_000}}, "slow, 8.00 Mbit/s"),
        ({"kind": "noqueue"}, "no limit"),
    ],
)
def test_the_health_of_a_host_is_read_from_its_queue(monkeypatch, queue, said):
    answers = {"ip": [{"flags": ["UP"]}], "tc": [queue]}
    monkeypatch.setattr(
        health, "run_command", lambda *argv: json.dumps(answers[argv[0]])
    )
    testbed = SimpleNamespace(
        rate="200mbit",
        link_ends=lambda host: (None, ("space", "p0")),
        pids=lambda h: (),
    )
    assert health.host_health(testbed, 0) == said


class TestBadInput:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("fail", "--cut"), "required: HOST"),
            (("up", "h1"), "no argument h1"),
            (("fail", "h1"), "jaxdist testbed fail h1 --cut"),
            (("fail", "h1", "--slow", "10mb"), "did you mean 10mbit?"),
            (("fail", "h1", "--cut", "--kill"), "not allowed with"),
            (("up", "--delay", "1"), "did you mean 1ms?"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, words, said, capfd):
        assert run_testbed(*words) == 2
        assert said in capfd.readouterr().err

    def test_a_kernel_without_delays_is_told_from_others(self, monkeypatch):
        words = []

        def answers(*given):
            words.append(given)
            code = int("netem" in given)
            return namespaces.subprocess.CompletedProcess(
                given, code, "", "unknown kind"
            )

        monkeypatch.setattr(namespaces, "try_command", answers)
        with pytest.raises(namespaces.BadInput, match="unknown kind"):
            namespaces.check_netem_support("mine")
        assert words[-1] == ("ip", "netns", "delete", "mine")
