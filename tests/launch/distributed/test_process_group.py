"""The processes of one run: turns, one voice, and an end that waits for nobody."""

import sys
import textwrap

import pytest

from jaxdist.launch.distributed.process_group import ProcessGroup, process_group
from jaxdist.launch.launchers.processes.group import ProcessesFailed
from jaxdist.launch.launchers.processes.loopback import Loopback

BEGIN = """
import sys, time
from pathlib import Path
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.distributed import initialize

rank, mine = initialize(), process_group()
"""


def python(text):
    return sys.executable, "-c", BEGIN + textwrap.dedent(text)


def test_process_0_goes_first_and_all_wait_for_all(tmp_path):
    text = f"""
        first, last = Path({str(tmp_path)!r}, "first"), Path({str(tmp_path)!r}, "last")
        with mine.primary_first("one"):
            time.sleep(0.3)
            print("first" if not first.exists() else "then")
            (first if mine.is_primary else last).touch()
        print(last.exists())
    """
    done = Loopback(2).run(python(text), timeout=60)
    assert [each.stdout for each in done] == ["first\nTrue\n", "then\nTrue\n"]


def test_values_are_gathered_broadcast_and_agreed_on():
    text = """
        print(mine.gather("ranks", {"rank": rank}))
        print(mine.broadcast("word", f"of {rank}"), mine.agree("step", 7 - rank))
        mine.publish("beat", rank)
        mine.publish("beat", 10 * rank)
        mine.barrier("all have published")
        print(mine.published("beat", int))
    """
    done = Loopback(3).run(python(text), timeout=60)
    gathered = [[{"rank": 0}, {"rank": 1}, {"rank": 2}], [], []]
    assert [each.stdout.splitlines() for each in done] == [
        [str(values), "of 0 7", "{0: 0, 1: 10, 2: 20}"] for values in gathered
    ]


def test_one_of_them_speaks_and_the_others_leave_after_it():
    text = """
        with mine.elect_printer() as first:
            if first:
                time.sleep(0.3)
                print(time.time())
        print(time.time() if not first else "")
    """
    done = Loopback(3).run(python(text), timeout=60)
    said = [each.stdout.split() for each in done]
    assert [len(words) for words in said] == [1, 1, 1]
    spoken = [each.stdout.endswith("\n\n") for each in done]
    assert spoken.count(True) == 1
    at = float(said[spoken.index(True)][0])
    assert all(float(words[0]) >= at for words in said)


def test_who_has_failed_does_not_wait_for_those_who_wait():
    text = """
        if rank == 1:
            mine.exit_process(5)
        time.sleep(600)
    """
    with pytest.raises(ProcessesFailed, match="process 1 of 2 ended with 5"):
        Loopback(2).run(python(text), timeout=30)


def test_a_process_on_its_own_asks_nobody():
    alone = process_group()
    assert alone == ProcessGroup()
    assert alone.is_primary
    with alone.primary_first("one"), alone.elect_printer() as first:
        assert first
    assert alone.exit_process(3) == 3
    assert alone.gather("a", 1) == [1]
    assert alone.broadcast("a", 1) == alone.agree("a", 1) == 1
    assert alone.published("a", int) == {}
    alone.barrier("a")
