"""Supervision: processes that are started again, and time to save for those asked to."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.launchers.processes.restart import restart_policy

BEGIN = """
import os, pathlib, signal, sys, time
rank, folder = int(os.environ["JAXDIST_RANK"]), pathlib.Path(sys.argv[1])
with (folder / f"starts-{rank}").open("a") as file:
    print(os.environ["JAXDIST_COORDINATOR"], file=file)

def count(rank):
    path = folder / f"starts-{rank}"
    return len(path.read_text().splitlines()) if path.exists() else 0

starts = count(rank)
while min(count(0), count(1)) < starts: time.sleep(0.01)
"""


def script(folder, text):
    return sys.executable, "-c", BEGIN + textwrap.dedent(text), str(folder)


def launched(capfd, folder, text, *options):
    """Run a script on two processes: exit code and standard error."""
    words = "-n", "2", *options, "--", *script(folder, text)
    code = main(["launch", "local", *words])
    return code, capfd.readouterr().err


def starts(folder, rank=0):
    return (folder / f"starts-{rank}").read_text().splitlines()


@pytest.mark.parametrize("code", [75, 1, -9])
def test_all_are_started_again_where_one_fails(tmp_path, capfd, code):
    text = f"""
        if rank == 0 and starts == 2: sys.exit()
        if rank == 1:
            if starts == 2: sys.exit()
            os.kill(os.getpid(), -{code}) if {code} < 0 else sys.exit({code})
        time.sleep(600)
    """
    done, err = launched(capfd, tmp_path, text, "--restarts", "3")
    assert done == 0
    assert "process 1 of 2" in err
    assert err.endswith("restart 1 of 3, in 1 s\n")
    assert [len(starts(tmp_path, rank)) for rank in (0, 1)] == [2, 2]


def test_every_attempt_has_a_coordinator_of_its_own(tmp_path, capfd):
    launched(capfd, tmp_path, "sys.exit(starts == 1)", "--restarts", "1")
    assert len(set(starts(tmp_path))) == 2


def test_after_the_last_restart_the_failure_is_the_answer(tmp_path, capfd):
    code, err = launched(capfd, tmp_path, "sys.exit(6 + starts)", "--restarts", "1")
    assert (code, err.count("restart 1 of 1")) == (8, 1)
    assert len(starts(tmp_path)) == 2


def test_without_being_asked_nothing_is_started_again(tmp_path, capfd):
    code, err = launched(capfd, tmp_path, "sys.exit(75)")
    assert (code, "restart" in err) == (75, False)


def test_what_was_refused_is_not_tried_again(tmp_path, capfd):
    code, err = launched(capfd, tmp_path, "sys.exit(2)", "--restarts", "3")
    assert (code, "restart" in err) == (2, False)
    assert len(starts(tmp_path)) == 1


def asked_to_end(job, folder, text, *options):
    """Send SIGTERM to a launcher: its exit code, and the seconds that it took."""
    words = "launch", "local", "-n", 2, *options, "--", *script(folder, text)
    child = job.start(*words)
    while not all((folder / f"ready-{rank}").exists() for rank in (0, 1)):
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)
    begin = time.monotonic()
    child.send_signal(signal.SIGTERM)
    child.communicate()
    return child.returncode, time.monotonic() - begin


def test_sigterm_gives_time_to_save_and_nothing_is_started_again(job, tmp_path):
    text = """
        def save(*_):
            time.sleep(1)
            (folder / f"saved-{rank}").touch()
            sys.exit(75)
        signal.signal(signal.SIGTERM, save)
        (folder / f"ready-{rank}").touch()
        time.sleep(600)
    """
    code, _ = asked_to_end(job, tmp_path, text, "--restarts", 3)
    assert code == 75
    assert all((tmp_path / f"saved-{rank}").exists() for rank in (0, 1))
    assert len(starts(tmp_path)) == 1


def test_the_time_to_save_ends(job, tmp_path):
    text = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / f"ready-{rank}").touch()
        time.sleep(600)
    """
    code, seconds = asked_to_end(job, tmp_path, text, "--grace", 1)
    assert code == 143
    assert 1 <= seconds < 8


@pytest.mark.parametrize(("restarts", "grace"), [(-1, None), (1001, None), (None, 0)])
def test_numbers_that_cannot_be(restarts, grace):
    with pytest.raises(BadInput, match="--restarts is between 0 and 1000"):
        restart_policy(restarts, grace)


def test_the_scheduler_starts_its_own_jobs_again(capfd):
    words = "--nodes", "2", "--restarts", "1", "--", "train", "digits"
    assert main(["launch", "slurm", *words]) == 2
    assert "takes no --restarts" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("told", "least", "most"), [(b"1\n", 0.9, 4.5), (b"", 4.5, 15)]
)
def test_a_command_on_another_host_has_the_time_that_its_launcher_gives(
    tmp_path, told, least, most
):
    text = """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(sys.argv[1]).touch()
        time.sleep(600)
    """
    ready = tmp_path / "ready"
    stays = sys.executable, "-c", textwrap.dedent(text), str(ready)
    held = subprocess.Popen(
        [sys.executable, "-m", "jaxdist.launch.launchers.ssh_guard", *stays],
        stdin=subprocess.PIPE,
    )
    while not ready.exists():
        time.sleep(0.02)
    begin = time.monotonic()
    held.communicate(told)
    assert least < time.monotonic() - begin < most
    assert held.returncode == 128 + signal.SIGKILL
