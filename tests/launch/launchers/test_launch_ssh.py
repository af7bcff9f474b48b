"""`jaxdist launch ssh`: one process a host, refused early, ended everywhere."""

import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.launchers.processes.group import ProcessSpec, start_process
from jaxdist.launch.launchers.ssh import parse_hosts, ssh_launch

system = [pytest.mark.system, pytest.mark.ssh, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(port):
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Start an sshd of our own; return what begins a remote command line."""
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    key, log = folder / "key", folder / "log"
    keygen = "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key
    subprocess.run(keygen, check=True)
    keys = folder / "authorized_keys"
    shutil.copy(f"{key}.pub", keys)
    config = folder / "config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {key}\nAuthorizedKeysFile {keys}\n"
        "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen(
        [shutil.which("sshd", path="/usr/sbin:/sbin"), "-D", "-f", config, "-E", log]
    )
    wait_for(port)
    none = (
        "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    yield f"ssh -p {port} -i {key} {none}"
    daemon.terminate()
    daemon.wait()


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launched(words, *program, hosts="localhost,127.0.0.1", port=None):
    at = "--ssh", words, "--hosts", hosts, "--port", str(port or free_port())
    return main(["launch", "ssh", *at, "--", *map(str, program)])


def python(text):
    return sys.executable, "-c", text


class TestSsh:
    pytestmark = system

    def test_each_host_has_its_rank_and_the_folder(self, words, here, capfd):
        text = "import os; print(os.environ['JAXDIST_RANK'], os.getcwd())"
        assert launched(words, *python(text)) == 0
        lines = sorted(capfd.readouterr().out.splitlines())
        assert lines == [f"r00 │ 0 {here}", f"r01 │ 1 {here}"]

    def test_the_first_failure_gives_the_code_and_nothing_stays(
        self, words, here, capfd
    ):
        text = (
            "import os, pathlib, sys, time\n"
            "rank = os.environ['JAXDIST_RANK']\n"
            "pathlib.Path(rank).write_text(str(os.getpid()))\n"
            "while not pathlib.Path('0').exists(): time.sleep(0.02)\n"
            "sys.exit('broken') if rank == '1' else time.sleep(600)"
        )
        assert launched(words, *python(text)) == 1
        assert "process 1 of 2 ended with 1; its last lines:\n  broken" in (
            capfd.readouterr().err
        )
        assert not Path("/proc", Path("0").read_text()).exists()

    @pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
    def test_nothing_survives_the_launcher(self, words, here, job, how):
        text = (
            "import os, pathlib, time;"
            "pathlib.Path(os.environ['JAXDIST_RANK']).write_text(str(os.getpid()));"
            "time.sleep(600)"
        )
        at = "--ssh", words, "--hosts", "localhost,127.0.0.1", "--port", free_port()
        job.env["PYTHONPATH"] = str(ROOT)
        parent = job.start("launch", "ssh", *at, "--", *python(text))
        pids = [here / str(rank) for rank in range(2)]
        while not all(pid.exists() and pid.read_text() for pid in pids):
            assert parent.poll() is None, parent.communicate()
            time.sleep(0.02)
        parent.send_signal(how)
        parent.communicate()
        end = time.monotonic() + 20
        while any(Path("/proc", pid.read_text()).exists() for pid in pids):
            assert time.monotonic() < end
            time.sleep(0.02)

    def test_processes_are_one_jax_program(self, words, here, capfd):
        text = (
            "import jax; from jaxdist.launch.distributed import initialize;"
            "print(initialize(), jax.process_count(), jax.device_count())"
        )
        assert launched(words, *python(text)) == 0
        lines = sorted(capfd.readouterr().out.splitlines())
        assert lines == ["r00 │ 0 2 2", "r01 │ 1 2 2"]

    def test_a_host_that_is_not_there_is_named(self, words, here, capfd):
        assert launched(words, "true", hosts="localhost,jaxdist.invalid") == 2
        assert "jaxdist.invalid: ssh: Could not resolve" in capfd.readouterr().err

    def test_a_port_that_is_taken(self, words, here, capfd):
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
            assert launched(words, "true", port=port) == 2
        assert "localhost: OSError: [Errno 98] Address already in use" in (
            capfd.readouterr().err
        )


class TestElastic:
    pytestmark = system

    def test_a_host_that_is_not_there_is_left_out(self, words, here, capfd):
        text = "import os; print(os.environ['JAXDIST_HOSTS'])"
        hosts = "jaxdist.invalid,localhost,127.0.0.1"
        how = "--ssh", words, "--hosts", hosts, "-n", "1:3", "--port", str(free_port())
        assert main(["launch", "ssh", *how, "--", *python(text)]) == 0
        out, err = capfd.readouterr()
        assert sorted(out.splitlines()) == ["r00 │ 2", "r01 │ 2"]
        assert "2 of 3 processes, without jaxdist.invalid" in err

    def test_a_spare_takes_the_place_of_one_that_is_lost(self, words, here, capfd):
        text = (
            "import os, pathlib, sys\n"
            "first = not pathlib.Path('lost').exists()\n"
            "pathlib.Path('lost').touch() if os.environ['JAXDIST_RANK'] == '0' else 0\n"
            "os.kill(os.getpid(), 9) if first else print(os.environ['JAXDIST_HOSTS'])"
        )
        how = "--ssh", words, "--hosts", "localhost,127.0.0.1", "-n", "1"
        port = "--port", str(free_port())
        assert main(["launch", "ssh", *how, *port, "--", *python(text)]) == 0
        out, err = capfd.readouterr()
        assert out == "r00 │ 1\n"
        assert "1 of 1 processes, without localhost" in err


class TestHeld:
    def test_it_ends_when_its_input_does(self, tmp_path):
        text = (
            "import os, pathlib, sys, time;"
            f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(os.getpid()));"
            "time.sleep(600)"
        )
        held = sys.executable, "-m", "jaxdist.launch.launchers.ssh_guard", *python(text)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = start_process(
            ProcessSpec(command=held, env=env, ends_with_stdin=True), None, None
        )
        while not (tmp_path / "pid").exists():
            assert child.poll() is None
            time.sleep(0.02)
        child.stdin.close()
        assert child.wait(30) == 128 + signal.SIGTERM

    def test_it_ends_with_its_command(self):
        held = (
            sys.executable,
            "-m",
            "jaxdist.launch.launchers.ssh_guard",
            *python("exit(7)"),
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = start_process(
            ProcessSpec(command=held, env=env, ends_with_stdin=True), None, None
        )
        assert child.wait(30) == 7
        child.stdin.close()


class TestHosts:
    def test_a_file_has_a_host_a_line(self, tmp_path):
        path = tmp_path / "hosts"
        path.write_text("# ours\nnode1\n\nme@node2  # the large one\n")
        assert parse_hosts(str(path)) == ("node1", "me@node2")

    def test_a_list_may_be_longer_than_a_file_name(self):
        names = tuple(f"node{number:04}" for number in range(60))
        assert parse_hosts(",".join(names)) == names

    def test_a_file_that_is_no_text_is_named(self, tmp_path):
        path = tmp_path / "hosts"
        path.write_bytes(b"n\xf6de1\n")
        with pytest.raises(BadInput, match="hosts is no text"):
            parse_hosts(str(path))

    @pytest.mark.parametrize(
        ("hosts", "said"),
        [
            ("a,b,a", "a twice"),
            ("a,you@a", "a twice"),
            (",", "no host in ','"),
            ("-oProxyCommand=x", "'-oProxyCommand=x' is no name"),
            ("me@-oProxyCommand=x", "is no name"),
            ("-l@node1", "is no name"),
            ("node1;reboot", "is no name"),
            ("$(reboot)@node1", "is no name"),
            ("node1 node2", "is no name"),
        ],
    )
    def test_what_cannot_be_used(self, hosts, said):
        with pytest.raises(BadInput, match=re.escape(said)):
            parse_hosts(hosts)

    def test_names_and_addresses(self):
        hosts = ("node1", "a.b-c_d", "me@10.0.0.1", "fe80::1%eth0", "me@[::1]", "n2:4")
        assert parse_hosts(",".join(hosts)) == hosts

    @settings(max_examples=200, deadline=None)
    @given(st.text(alphabet="a1-_.@:%[]$`;|&<>()'\"\\ \n*!~{}", max_size=8))
    def test_no_host_is_an_option_or_more_than_a_word(self, text):
        try:
            hosts = parse_hosts(text)
        except BadInput:
            return
        for host in hosts:
            assert not re.search(r"[^\w.@:%+\[\]-]", host)
            assert not any(part.startswith("-") for part in host.split("@"))


def test_print_shows_lines_for_a_shell():
    found = ssh_launch(
        ["train me"], "me@a,b", folder=Path("/at here"), devices_per_process=2
    )
    first, second = found.shell_text({"PYTHONPATH": "/p", "HOME": "/h"}).splitlines()
    *begin, host, line = shlex.split(second)
    assert (begin[0], host) == ("ssh", "b")
    assert line.startswith("cd '/at here' && exec env PYTHONPATH=/p")
    assert "JAXDIST_RANK=1" in line
    assert "JAXDIST_COORDINATOR=a:29500" in line
    assert "JAX_NUM_CPU_DEVICES=2" in line
    assert "/h" not in line
    assert line.endswith("'train me'")
    assert getpass.getuser() not in first


@pytest.mark.parametrize("host", ["fe80::1", "me@fe80::1", "[fe80::1]"])
def test_a_coordinator_of_ipv6_stands_in_brackets(host):
    found = ssh_launch(["true"], f"{host},b", folder=Path("/"), port=1)
    _, line = found.ssh_argv(1, {})[-2:]
    assert "JAXDIST_COORDINATOR=[fe80::1]:1" in shlex.split(line)


def test_ports_of_attempts_are_ports():
    launch = ssh_launch(["true"], "a", folder=Path("/"), port=65_534)
    ports = [launch.for_attempt(number).port for number in (0, 1, 2, 100_000)]
    assert ports[:3] == [65_534, 65_535, 1024]
    assert 1024 <= ports[3] <= 65_535


@pytest.mark.parametrize("shell", ["ssh '", " "])
def test_words_of_ssh_that_cannot_be_told_apart_are_refused(shell):
    with pytest.raises(BadInput, match="words of --ssh"):
        ssh_launch(["true"], "a", folder=Path("/"), remote_shell=shell)


def test_without_ssh_the_command_is_named(capfd):
    words = "launch", "ssh", "--ssh", "no-such-ssh", "--hosts", "a,b", "--", "true"
    assert main(list(words)) == 2
    assert "no-such-ssh is not on PATH" in capfd.readouterr().err
