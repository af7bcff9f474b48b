"""Preemption: SIGTERM to any process ends all at the same poll, and a run at one step."""

import json
import re
import signal
import sys
import textwrap
import time

import pytest

from jaxdist.launch.launchers.processes.group import ProcessesFailed
from jaxdist.launch.launchers.processes.loopback import Loopback

BEGIN = """
import hashlib, os, signal, sys, threading, time
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.distributed import initialize
from jaxdist.launch.distributed.preemption import PreemptionHandler, batches_until

rank = initialize() if "JAXDIST_RANK" in os.environ else 0
"""
SMALL = (
    *("model.width=4", "data.batch=64", "epochs=400"),
    *("plan.mesh.data=2", "plan.mesh.spatial_h=1"),
)


def python(text):
    return sys.executable, "-c", BEGIN + textwrap.dedent(text)


@pytest.mark.parametrize("at", [0, 2])
def test_all_end_at_the_same_poll_whoever_was_asked(at):
    text = f"""
        with PreemptionHandler(process_group()) as ends:
            polls = 0
            while not ends():
                polls += 1
                time.sleep(0.002 * (1 + rank))
                if rank == {at} and polls == 50:
                    os.kill(os.getpid(), signal.SIGTERM)
            again = ends()
        print(polls, again)
    """
    done = Loopback(3).run(python(text), timeout=60)
    said = {each.stdout for each in done}
    assert len(said) == 1
    polls, again = said.pop().split()
    assert int(polls) >= 50
    assert again == "True"


def test_nobody_asked_polls_are_false_and_all_leave():
    text = """
        with PreemptionHandler(process_group()) as ends:
            print(any(ends() for _ in range(1000)))
    """
    done = Loopback(2).run(python(text), timeout=60)
    assert {each.stdout for each in done} == {"False\n"}


def test_before_the_first_poll_a_process_leaves_at_once_while_it_computes():
    text = """
        with PreemptionHandler(process_group()):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
            # As a compiler does, in C: no handler of Python's runs meanwhile.
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    """
    with pytest.raises(ProcessesFailed, match="ended with 75") as failed:
        Loopback(1).run(python(text), timeout=60)
    assert "before the first step: nothing to save" in failed.value.results[0].stderr


def test_batches_end_where_a_poll_is_true():
    text = """
        with PreemptionHandler(process_group()) as ends:
            for batch in batches_until(range(10**9), ends):
                if batch == 7:
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(0.5)
        print(batch)
    """
    (done,) = Loopback(1).run(python(text), timeout=60)
    assert done.stdout == "7\n"


def test_outside_the_signal_is_what_it_was():
    text = """
        with PreemptionHandler(process_group()):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    """
    with pytest.raises(ProcessesFailed, match=f"ended with -{signal.SIGTERM:d}"):
        Loopback(1).run(python(text), timeout=60)


def steps_of(job, folder):
    rows = job.lines(folder / "metrics.jsonl")
    return [row["step"] for row in rows if row["kind"] == "train"]


def wait_for_step(job, child, folder, step):
    while not any(row >= step for row in steps_of(job, folder)):
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)


def ended_at(job, folder):
    """The step at which a run was saved and stopped, with nothing lost behind it."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert summary["steps"] == summary["checkpoint"] == steps_of(job, folder)[-1]
    return summary["steps"]


@pytest.mark.timeout(300)
def test_one_process_saves_at_the_step_it_is_at_and_goes_on_from_there(job, tmp_path):
    words = f"run.dir={tmp_path}", f"data.dir={job.data}", *SMALL
    child = job.start("train", "digits", *words)
    wait_for_step(job, child, tmp_path / "digits", 3)
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate()
    assert child.returncode == 75, err
    step = ended_at(job, tmp_path / "digits")
    assert f"stopped   at step {step}" in out
    steps = steps_of(job, tmp_path / "digits")
    assert steps == list(range(1, step + 1))
    # The step of the processes is that of the run: it was the last one of the plan.
    code, out, err = job.run("status", tmp_path / "digits", "--json")
    told = json.loads(out)
    assert (told["state"], told["step"]) == ("stopped", step)
    assert told["processes"]["0"]["step"] == step
    shorter = f"epochs={(step + 2) / 22.45}"
    code, out, err = job.run("resume", tmp_path / "digits", shorter, "--change")
    assert code == 0, err
    said = " ".join(out.split())
    assert f"resumed at step {step}" in said
    assert re.search(r"goodput \S+ % of .* in 2 attempts: ", said)
    assert " lost " not in said.partition("goodput")[2]


def processes_of(launcher):
    """The processes of a launcher, by rank."""
    import psutil

    found = {}
    for child in psutil.Process(launcher).children(recursive=True):
        env = child.environ()
        if "JAXDIST_RANK" in env:
            found[int(env["JAXDIST_RANK"])] = child
    return found


@pytest.mark.timeout(300)
def test_any_process_asked_to_end_ends_all_at_one_step(job, tmp_path):
    words = f"run.dir={tmp_path}", f"data.dir={job.data}", *SMALL
    how = "launch", "local", "-n", 2, "--devices-per-process", 1, "--"
    child = job.start(*how, "train", "digits", *words)
    wait_for_step(job, child, tmp_path / "digits", 3)
    processes_of(child.pid)[1].send_signal(signal.SIGTERM)
    _, err = child.communicate()
    assert child.returncode == 75, err
    ended_at(job, tmp_path / "digits")
    assert "ended with 75, so all were ended" in err
