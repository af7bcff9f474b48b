"""Processes that live and die together: their output, their ends, nothing left."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import psutil
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed import initialize
from jaxdist.launch.launchers.processes.group import (
    ProcessesFailed,
    ProcessSpec,
    run_and_collect,
    run_and_stream,
)
from jaxdist.launch.launchers.processes.loopback import Loopback

PSUM = """
import jax
from jaxdist.launch.distributed import initialize

rank = initialize()
mesh = jax.make_mesh((jax.device_count(),), ("data",))
spec = jax.sharding.PartitionSpec("data")
place = jax.sharding.NamedSharding(mesh, spec)
x = jax.make_array_from_callback(
    (jax.device_count(),), place, lambda at: jax.numpy.full(1, 10.0**rank)
)
add = jax.shard_map(
    lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=spec, out_specs=spec
)
print(float(jax.jit(add)(x).addressable_data(0)[0]))
"""


def python(text):
    return sys.executable, "-c", textwrap.dedent(text)


def tasks(*texts):
    env = dict(os.environ)
    return [ProcessSpec(command=python(text), env=env) for text in texts]


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid, within=10):
    end = time.monotonic() + within
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_each_leaves_its_output():
    said = "import sys; print({0}); print('no {0}', file=sys.stderr)"
    found = run_and_collect(tasks(said.format(1), said.format(2)), timeout=60)
    assert [(r.returncode, r.stdout, r.stderr) for r in found] == [
        (0, "1\n", "no 1\n"),
        (0, "2\n", "no 2\n"),
    ]


def test_output_that_nobody_reads_stops_nobody():
    (found,) = run_and_collect(tasks("print('x' * 1_000_000)"), timeout=60)
    assert len(found.stdout) == 1_000_001


def test_what_was_written_before_the_first_end_is_passed_on(tmp_path):
    """However late its reader is: one process says for all why they end."""
    said, ended = tmp_path / "said", tmp_path / "ended"
    speaks = f"""
        import pathlib, time
        print("begins", flush=True)
        while not pathlib.Path({str(ended)!r}).exists():
            time.sleep(0.01)
        print("the reason", flush=True)
        pathlib.Path({str(said)!r}).touch()
        time.sleep(60)
    """
    ends = f"""
        import os, pathlib, sys, time
        print(os.getpid(), flush=True)
        while not pathlib.Path({str(said)!r}).exists():
            time.sleep(0.01)
        print("the end", end="", flush=True)
        sys.exit(2)
    """
    lines, pid = [], []

    def on_line(rank, line, error):
        lines.append((rank, line))
        if rank == 1:
            pid.append(int(line) if line.isdigit() else 0)
        if len(lines) == 2:
            # Both have begun. The readers wait here until process 1 has ended.
            ended.touch()
            assert gone(pid[0])
            time.sleep(0.1)

    failure = run_and_stream(tasks(speaks, ends), on_line, failure_grace_s=1)
    assert failure is not None
    assert (failure.rank, failure.returncode) == (1, 2)
    assert failure.last_lines[-1] == "the end"
    assert {(0, "the reason"), (1, "the end")} <= set(lines)


def test_a_failure_ends_all_and_is_quoted(tmp_path):
    waits = f"""
        import os, pathlib, time
        pathlib.Path({str(tmp_path)!r}, "pid").write_text(str(os.getpid()))
        time.sleep(600)
    """
    fails = f"""
        import pathlib, sys, time
        while not pathlib.Path({str(tmp_path)!r}, "pid").exists(): time.sleep(0.01)
        sys.exit("out of luck")
    """
    with pytest.raises(ProcessesFailed, match=r"(?s)process 1 of 2 .* out of luck"):
        run_and_collect(tasks(waits, fails), timeout=60)
    assert gone(int((tmp_path / "pid").read_text()))


def test_children_of_children_end_too(tmp_path):
    text = f"""
        import pathlib, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path({str(tmp_path)!r}, "pid").write_text(str(child.pid))
    """
    run_and_collect(tasks(text), timeout=60)
    assert gone(int((tmp_path / "pid").read_text()))


def test_time_is_up():
    with pytest.raises(ProcessesFailed, match=r"process 0 of 1 ran past 0\.5 s"):
        run_and_collect(tasks("import time; time.sleep(600)"), timeout=0.5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has affinities")
def test_a_process_has_the_processors_that_it_is_given():
    last = max(os.sched_getaffinity(0))
    (task,) = tasks("import os; print(*os.sched_getaffinity(0))")
    (done,) = run_and_collect([replace(task, cpus=(last,))], timeout=20)
    assert done.stdout.split() == [str(last)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_survives_its_parent(tmp_path, how):
    text = f"""
        import os, signal, sys
        from jaxdist.launch.launchers.processes.group import ProcessSpec, run_and_collect
        signal.signal(signal.SIGINT, signal.default_int_handler)
        writes = "import os, pathlib, time;" \\
            "pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(os.getpid()));" \\
            "time.sleep(600)"
        task = ProcessSpec(command=(sys.executable, "-c", writes), env=dict(os.environ))
        run_and_collect([task], timeout=600)
    """
    parent = subprocess.Popen(python(text), stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        assert parent.poll() is None
        time.sleep(0.02)
    parent.send_signal(how)
    parent.wait(20)
    assert gone(int(pid.read_text()))


def test_processes_on_loopback_are_one_jax_program():
    found = Loopback(2).run(python(PSUM), timeout=100)
    assert [r.stdout.splitlines()[-1] for r in found] == ["11.0", "11.0"]


def test_one_process_joins_nobody():
    (found,) = Loopback(1).run(python(PSUM), timeout=100)
    assert found.stdout == "1.0\n"


def test_a_process_that_nobody_started_says_so():
    with pytest.raises(BadInput, match="JAXDIST_RANK is not set"):
        initialize()


def test_commands_and_hosts_must_match():
    with pytest.raises(BadInput, match="3 commands, 2 hosts"):
        Loopback(2).run(["a"], ["b"], ["c"])
    with pytest.raises(BadInput, match="1 to 64"):
        Loopback(0)
