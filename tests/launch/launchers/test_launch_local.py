"""`jaxdist launch local`: one merged view, the first failure, and nothing left."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import command_names, main
from jaxdist.launch.launchers.local import local_launch
from jaxdist.launch.launchers.processes.group import (
    ProcessFailure,
    ProcessSpec,
    run_and_stream,
)
from jaxdist.launch.launchers.processes.output import print_failure
from jaxdist.launch.launchers.program import program_command

RANK = "import os; rank = int(os.environ['JAXDIST_RANK'])\n"


def script(text):
    return sys.executable, "-c", RANK + textwrap.dedent(text)


def launched(capfd, count, text):
    """Run a script on several processes in this one: code, and both outputs."""
    code = main(["launch", "local", "-n", str(count), "--", *script(text)])
    return code, *capfd.readouterr()


def found(*program, count=2, devices=None, port=None):
    command = program_command(program, command_names())
    return local_launch(
        command, num_processes=count, devices_per_process=devices, port=port
    )


def alive(pid):
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")")[-1].split()[0] != "Z"


def gone(pid, within=10):
    end = time.monotonic() + within
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


class TestOneView:
    def test_every_line_has_the_rank_it_comes_from(self, capfd):
        text = """
            import sys
            print('here is', rank)
            print('oh', rank, file=sys.stderr)
        """
        code, out, err = launched(capfd, 2, text)
        assert code == 0
        assert sorted(out.splitlines()) == ["r00 │ here is 0", "r01 │ here is 1"]
        assert sorted(err.splitlines()) == ["r00 │ oh 0", "r01 │ oh 1"]

    def test_lines_that_gloo_writes_are_left_out(self, capfd):
        text = "print('[Gloo] Rank 1 is connected to 3 peer ranks.'); print('kept')"
        assert launched(capfd, 1, text)[1] == "r00 │ kept\n"

    def test_what_is_no_text_stops_nobody(self, capfd):
        text = "import sys; sys.stdout.buffer.write(b'\\xff\\n' + b'x' * 1_000_000)"
        code, out, _ = launched(capfd, 1, text)
        assert (code, len(out)) == (0, len("r00 │ ?\nr00 │ \n") + 1_000_000)

    def test_processes_know_their_place_and_devices(self, capfd):
        text = (
            "print(*(os.environ[k] for k in ('JAXDIST_HOSTS', 'JAX_NUM_CPU_DEVICES')))"
        )
        words = "-n", "2", "--devices-per-process", "3", "--", *script(text)
        assert main(["launch", "local", *words]) == 0
        lines = sorted(capfd.readouterr().out.splitlines())
        assert lines == ["r00 │ 2 3", "r01 │ 2 3"]


class TestFailures:
    def test_the_first_is_reported_with_its_last_lines_and_gives_the_code(self, capfd):
        text = """
            import sys, time
            if rank:
                print("out of luck")
                sys.exit(7)
            time.sleep(600)
        """
        code, _, err = launched(capfd, 2, text)
        assert code == 7
        assert err == (
            "error: process 1 of 2 ended with 7; its last lines:\n  out of luck\n"
        )

    def test_a_signal_is_named(self, capfd):
        text = "import signal; os.kill(os.getpid(), signal.SIGKILL)"
        code, _, err = launched(capfd, 1, text)
        assert (code, err.split(";")[0]) == (
            137,
            "error: process 0 of 1 was ended by SIGKILL",
        )

    def test_who_refuses_has_said_why(self, capsys):
        refused = ProcessFailure(rank=0, returncode=2, last_lines=("error: no",))
        print_failure(refused, 2)
        said = capsys.readouterr().err
        assert said == "process 0 of 2 ended with 2, so all were ended\n"

    def test_who_does_not_end_when_asked_is_killed(self, tmp_path):
        pid = tmp_path / "pid"
        stays = f"""
            import pathlib, signal, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))
            time.sleep(600)
        """
        fails = f"""
            import pathlib, sys, time
            while not pathlib.Path({str(pid)!r}).exists(): time.sleep(0.01)
            sys.exit(3)
        """
        tasks = [
            ProcessSpec(command=script(text), env={**os.environ, "JAXDIST_RANK": "0"})
            for text in (stays, fails)
        ]
        failure = run_and_stream(tasks, lambda *line: None, failure_grace_s=0.3)
        assert (failure.rank, failure.returncode) == (1, 3)
        assert not alive(int(pid.read_text()))

    def test_children_of_children_end_too(self, tmp_path, capfd):
        pid = tmp_path / "pid"
        text = f"""
            import pathlib, subprocess, sys
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            pathlib.Path({str(pid)!r}).write_text(str(child.pid))
            sys.exit(1)
        """
        assert launched(capfd, 1, text)[0] == 1
        assert gone(int(pid.read_text()))

    @pytest.mark.parametrize(
        ("how", "code"),
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
    )
    def test_nothing_survives_the_launcher(self, job, tmp_path, how, code):
        text = f"""
            import pathlib, subprocess, sys, time
            sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
            pids = os.getpid(), subprocess.Popen(sleeps).pid
            path = pathlib.Path({str(tmp_path)!r}, f"{{rank}}")
            path.with_suffix(".part").write_text(f"{{pids[0]}} {{pids[1]}}")
            path.with_suffix(".part").rename(path)
            time.sleep(600)
        """
        parent = job.start("launch", "local", "-n", 2, "--", *script(text))
        paths = [tmp_path / f"{rank}" for rank in range(2)]
        while not all(path.exists() for path in paths):
            assert parent.poll() is None
            time.sleep(0.02)
        parent.send_signal(how)
        parent.communicate()
        assert parent.returncode == code
        for path in paths:
            assert all(gone(int(pid)) for pid in path.read_text().split())


class TestTrain:
    def test_a_refusal_is_one_message_and_exit_code_2(self, job, tmp_path):
        words = "data.batch=63", f"run.dir={tmp_path}/runs", f"data.dir={job.data}"
        how = "launch", "local", "-n", 2, "--", "train", "digits"
        code, out, err = job.run(*how, *words)
        assert (code, out) == (2, "")
        assert err.count("error:") == 1
        assert "r00 │ error: the global batch does not divide over the mesh" in err
        assert not (tmp_path / "runs").exists()

    def test_fewer_devices_than_the_plan(self, job, tmp_path):
        how = "launch", "local", "-n", 2, "--devices-per-process", 2, "--"
        words = "train", "digits", "plan.mesh.data=8", f"run.dir={tmp_path}/runs"
        code, _, err = job.run(*how, *words)
        assert code == 2
        assert err.count("error:") == 1
        assert "or on fake devices: --devices-per-process 8" in err


class TestBadInput:
    def test_numbers_that_cannot_be(self):
        with pytest.raises(BadInput, match="-n is between 1 and 64"):
            found("train", "digits", count=0)
        with pytest.raises(BadInput, match="--devices-per-process is between"):
            found("train", "digits", devices=0)

    def test_nothing_to_start(self):
        with pytest.raises(BadInput, match="launch local -n 4 -- train digits"):
            found()

    def test_a_program_that_is_not_there(self):
        with pytest.raises(BadInput, match="did you mean train"):
            found("traim", "digits")

    def test_what_one_process_does_alone(self):
        with pytest.raises(BadInput, match="remedy   jaxdist eval digits"):
            found("eval", "digits")

    def test_a_port_that_is_taken(self):
        import socket

        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with pytest.raises(BadInput, match=f"cannot listen at port {port}"):
                found("train", "digits", port=port)
        with pytest.raises(BadInput, match="between 1024 and 65535"):
            found("train", "digits", port=80_000)


def test_print_shows_lines_for_a_shell_and_starts_nothing(tmp_path):
    command = "touch", str(tmp_path / "$RANK here")
    shown = found(*command, count=2, devices=2, port=None).shell_text().splitlines()
    assert [line.split("JAXDIST_RANK=")[1][0] for line in shown] == ["0", "1"]
    assert not list(tmp_path.iterdir())
    for line in shown:
        subprocess.run(["sh", "-c", f"env {line}"], check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["$RANK here"]
