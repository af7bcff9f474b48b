"""`jaxdist testbed`: hosts that stand until they are taken down, and nothing after."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.testbed import manager
from jaxdist.launch.testbed.manager import DEFAULT_NAME
from jaxdist.launch.testbed.namespaces import existing_namespaces

system = [pytest.mark.system, pytest.mark.hosts, pytest.mark.timeout(300)]

SENDS = """
import os, socket, time
host, port = os.environ["JAXDIST_COORDINATOR"].split(":")
if os.environ["JAXDIST_RANK"] == "0":
    with socket.create_server((host, int(port))) as server:
        peer, _ = server.accept()
        while peer.recv(1 << 20):
            pass
else:
    for _ in range(500):
        try:
            peer = socket.create_connection((host, int(port)))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    peer.sendall(bytes(1_000_000))
    peer.close()
"""


def run_testbed(*words):
    return main(["testbed", *map(str, words)])


def python(text):
    return "--", sys.executable, "-c", text


@pytest.fixture
def clean():
    assert not manager.netns_names(), "a testbed of this machine is up"
    yield
    manager.remove_testbed()


@pytest.fixture
def two(clean, capfd):
    assert run_testbed("up", "--hosts", 2, "--rate", "80mbit") == 0
    said = capfd.readouterr().out
    assert "2 hosts on one switch, 80mbit each way" in said
    return said


class TestStanding:
    pytestmark = system

    def test_what_one_command_makes_others_use_and_remove(self, two, capfd):
        assert (
            run_testbed("run", *python("import os; print(os.environ['JAXDIST_RANK'])"))
            == 0
        )
        lines = capfd.readouterr().out.splitlines()
        assert sorted(lines) == ["r00 │ 0", "r01 │ 1"]
        assert run_testbed("down") == 0
        assert capfd.readouterr().out == "testbed   removed: 2 hosts; nothing is left\n"
        assert not manager.netns_names()
        assert run_testbed("down") == 0
        assert capfd.readouterr().out == "testbed   there was none\n"

    def test_status_shows_what_hosts_have_sent(self, two, capfd):
        assert run_testbed("run", *python(SENDS)) == 0
        before, after = manager.load_testbed().read_counters(), 1_000_000
        assert before[1].tx_bytes > after
        assert before[0].rx_bytes > after
        assert run_testbed("status") == 0
        assert "10.77.0.2" in capfd.readouterr().out

    def test_a_host_that_fails_gives_the_code_and_the_others_end(self, two, capfd):
        text = (
            "import os, sys, time\n"
            "if os.environ['JAXDIST_RANK'] == '1': sys.exit(5)\n"
            "time.sleep(600)"
        )
        assert run_testbed("run", *python(text)) == 5
        assert "process 1 of 2 ended with 5" in capfd.readouterr().err

    def test_there_is_one(self, two, capfd):
        assert run_testbed("up") == 2
        assert "remedy   jaxdist testbed down" in capfd.readouterr().err

    def test_other_hosts_that_come_and_go_leave_it_alone(self, two):
        from jaxdist.launch.testbed.hosts import EmulatedCluster

        before = manager.netns_names()
        with EmulatedCluster(2):
            pass
        assert manager.netns_names() == before

    def test_what_is_not_whole_is_said_and_removed(self, two, capfd):
        manager._metadata_file(DEFAULT_NAME).unlink()
        assert run_testbed("run", *python("")) == 2
        assert "the testbed is not whole" in capfd.readouterr().err
        assert run_testbed("down") == 0
        assert not manager.netns_names()

    def test_down_ends_what_runs_there(self, two, job, tmp_path):
        text = (
            "import os, pathlib, time;"
            f"pathlib.Path({str(tmp_path)!r}, os.environ['JAXDIST_RANK']).touch();"
            "time.sleep(600)"
        )
        child = job.start("testbed", "run", *python(text))
        while not all(Path(tmp_path, str(rank)).exists() for rank in range(2)):
            assert child.poll() is None
            time.sleep(0.02)
        assert run_testbed("down") == 0
        child.communicate()
        assert child.returncode == 128 + signal.SIGKILL

    def test_train_runs_over_the_hosts(self, two, job, tmp_path):
        words = "model.width=4", "epochs=0.1", f"data.dir={job.data}"
        where = "--", "train", "digits", *words, f"run.dir={tmp_path}"
        code, out, err = job.run("testbed", "run", *where)
        assert code == 0, err
        assert "8 devices (cpu, fake), 2 processes" in out
        assert (tmp_path / "digits" / "summary.json").exists()
        gradients = 4 * 5_094  # bytes of one sum; each step makes one
        assert all(
            each.tx_bytes > gradients for each in manager.load_testbed().read_counters()
        )

    def test_nothing_is_left_after_many(self, clean):
        before = existing_namespaces(), links()
        for _ in range(5):
            manager.create_testbed(3, "100mbit")
            manager.remove_testbed()
        assert (existing_namespaces(), links()) == before


class TestNamed:
    pytestmark = system

    @pytest.fixture
    def named(self):
        yield "namedone", "namedtwo"
        for name in ("namedone", "namedtwo"):
            manager.remove_testbed(name)

    def status(self, name, capfd):
        capfd.readouterr()
        assert run_testbed("status", "--name", name) == 0
        lines = capfd.readouterr().out.splitlines()
        hosts = (line.split() for line in lines if line.strip().startswith("h"))
        return {words[0]: " ".join(words[6:]) for words in hosts if words[0] != "host"}

    def test_testbeds_of_two_names_do_not_see_each_other(self, named, capfd):
        one, two = named
        before = manager.netns_names()
        assert run_testbed("up", "--hosts", 2, "--name", one) == 0
        said = capfd.readouterr().out
        assert f"jaxdist testbed down --name {one}" in said
        assert run_testbed("up", "--hosts", 3, "--rate", "80mbit", "--name", two) == 0
        assert run_testbed("up", "--name", one) == 2
        assert f"jaxdist testbed down --name {one}" in capfd.readouterr().err
        assert (
            manager.load_testbed(one).num_hosts,
            manager.load_testbed(two).num_hosts,
        ) == (
            2,
            3,
        )
        assert run_testbed("run", "--name", one, *python(SENDS)) == 0
        sent = manager.load_testbed(two).read_counters()
        assert all(each.tx_bytes < 10_000 for each in sent)
        assert run_testbed("down", "--name", one) == 0
        assert (manager.netns_names(one), len(manager.netns_names(two))) == ((), 4)
        assert manager.netns_names() == before

    def test_status_says_what_is_wrong_with_a_host(self, named, capfd):
        name, _ = named
        assert run_testbed("up", "--hosts", 3, "--rate", "80mbit", "--name", name) == 0
        well = {"h0": "ok", "h1": "ok", "h2": "ok"}
        assert self.status(name, capfd) == well
        assert run_testbed("fail", "h1", "--cut", "--name", name) == 0
        assert run_testbed("fail", "h2", "--slow", "8mbit", "--name", name) == 0
        wrong = {"h1": "cut", "h2": "slow, 8.00 Mbit/s"}
        assert self.status(name, capfd) == well | wrong
        for host in wrong:
            assert run_testbed("mend", host, "--name", name) == 0
        assert self.status(name, capfd) == well

    def test_status_says_that_processes_are_stopped(self, named, capfd):
        hosts = manager.create_testbed(1, None, name=named[0])
        sleeps = "import time; print(flush=True); time.sleep(600)"
        words = hosts.host_argv(0, sys.executable, "-c", sleeps)
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        child.stdout.readline()
        assert run_testbed("fail", "h0", "--stop", "--name", named[0]) == 0
        assert self.status(named[0], capfd) == {"h0": "stopped"}
        child.kill()
        child.communicate()


def links():
    return subprocess.run(["ip", "-o", "link"], capture_output=True, check=True).stdout


class TestBadInput:
    def test_wrong_rates_and_numbers_make_nothing(self):
        with pytest.raises(BadInput, match="did you mean 200mbit"):
            manager.create_testbed(2, "200mb")
        with pytest.raises(BadInput, match="--hosts is between 1 and 64"):
            manager.create_testbed(0, None)

    @pytest.mark.parametrize("name", ["", "a-b", "7", "Slow", "a" * 17])
    def test_what_is_no_name_makes_nothing(self, name, capsys):
        assert run_testbed("up", f"--name={name}") == 2
        assert "names no testbed" in capsys.readouterr().err

    @pytest.mark.parametrize("action", ["up", "run", "down", "status"])
    def test_without_root_there_is_another_way(self, action, monkeypatch, capsys):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert run_testbed(action) == 2
        said = capsys.readouterr().err
        assert "the user is 1000" in said
        assert "jaxdist launch local -n 4 -- train digits" in said
