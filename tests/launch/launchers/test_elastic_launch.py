"""Elastic runs: who is lost, who goes on, who comes back, and what is refused before."""

import sys
import textwrap

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan_resize import resize_plan
from jaxdist.launch.cli.main import main
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.launchers.elastic.host_pool import LocalPool
from jaxdist.launch.launchers.elastic.process_counts import (
    FeasibleCounts,
    feasible_counts,
)
from jaxdist.launch.launchers.elastic.process_range import (
    ProcessRange,
    parse_process_range,
)
from jaxdist.launch.launchers.elastic.supervisor import run_elastic
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.launchers.processes.restart import RestartPolicy
from jaxdist.launch.launchers.ssh import parse_hosts
from jaxdist.launch.testbed.host_pool import EmulatedPool
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.training.monitor.watchdog import ProcessHeartbeat, diagnose_hang

BEGIN = """
import os, pathlib, signal, sys, time
rank, count = int(os.environ["JAXDIST_RANK"]), int(os.environ["JAXDIST_HOSTS"])
folder, planned = pathlib.Path(sys.argv[1]), os.environ["JAXDIST_PLANNED"]
first = not (folder / f"begun-{rank}").exists()
if rank == 0:
    with (folder / "starts").open("a") as file:
        print(count, planned, file=file)
(folder / f"begun-{rank}").touch()

def tell(kind, ranks=()):
    from jaxdist.launch.distributed.launcher_messages import send_to_launcher
    send_to_launcher(kind, ranks)

def others():
    while not all((folder / f"begun-{r}").exists() for r in range(count)):
        time.sleep(0.01)

def ends_when_asked():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
    time.sleep(60)
"""


def script(folder, text):
    return sys.executable, "-c", BEGIN + textwrap.dedent(text), str(folder)


def launched(capfd, folder, text, *options):
    """Run a script on two processes, or one: exit code, starts, standard error."""
    how = "-n", "1:2", *options, "--", *script(folder, text)
    code = main(["launch", "local", *how])
    return (
        code,
        (folder / "starts").read_text().split("\n")[:-1],
        capfd.readouterr().err,
    )


LOSES = """
    if first and rank == 1:
        others()
        {dies}
    if first or count == 1:
        others()
        ends_when_asked()
"""


@pytest.mark.parametrize(
    "dies", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit('broken')"]
)
def test_who_is_lost_is_left_out_and_taken_back(tmp_path, capfd, dies):
    options = "--rejoin-after", "1.5", "--restarts", "1"
    text = LOSES.format(dies=dies)
    code, starts, err = launched(capfd, tmp_path, text, *options)
    # The return is no restart: there was one failure.
    assert (code, starts) == (0, ["2 2", "1 2", "2 2"])
    assert "lost: place 1" in err
    assert "1 of 2 processes, without place 1" in err
    assert "more places are there: all end" in err


def test_whom_the_hang_doctor_names_is_lost(tmp_path, capfd):
    text = """
        if count == 1: sys.exit()
        others()
        if rank == 1: time.sleep(60)
        tell("stuck", [1])
        sys.exit(75)
    """
    code, starts, err = launched(capfd, tmp_path, text)
    assert (code, starts) == (0, ["2 2", "1 2"])
    assert "lost: place 1" in err


def test_who_was_asked_to_end_is_not_lost(tmp_path, capfd):
    text = """
        others()
        sys.exit(75 if first and rank == 1 else time.sleep(60 * first))
    """
    code, starts, err = launched(capfd, tmp_path, text)
    assert (code, starts, "lost" in err) == (0, ["2 2", "2 2"], False)


def test_what_was_refused_is_not_tried_with_fewer(tmp_path, capfd):
    code, starts, _ = launched(capfd, tmp_path, "others(); sys.exit(2)")
    assert (code, starts) == (2, ["2 2"])


class Reached:
    """Hosts of which some are not there."""

    slot_names = ("a", "b", "c")

    def __init__(self, *there):
        self.found, self.on = set(there), []

    def available(self, slots):
        return frozenset(slots) & self.found

    def process_specs(self, slots, attempt):
        self.on.append(tuple(slots))
        return [ProcessSpec(command=("true",), env={}) for _ in slots]


@pytest.mark.parametrize(
    ("there", "counts", "on"),
    [((0, 1, 2), (2,), (0, 1)), ((1, 2), (2, 3), (1, 2)), ((0, 2), (1, 3), (0,))],
)
def test_as_many_run_as_are_there_and_able(there, counts, on):
    hosts = Reached(*there)
    assert run_elastic(hosts, FeasibleCounts(counts=counts), RestartPolicy()) == 0
    assert hosts.on == [on]


def test_too_few_at_the_start_are_named():
    with pytest.raises(BadInput, match=r"1 of 3; not there: a, c"):
        run_elastic(Reached(1), FeasibleCounts(counts=(2, 3)), RestartPolicy())


CUT = """
    import subprocess
    space = sys.argv[2]
    if first and rank == 1 and count == 3:
        subprocess.run(["ip", "link", "set", "dev", "eth0", "down"], check=True)
        (folder / "cut").touch()
        time.sleep(60)
    if count == 3 and not (folder / "mended").exists():
        others()
        while not (folder / "cut").exists(): time.sleep(0.01)
        if rank == 2: time.sleep(60)
        # One that is cut off and one that is not accuse each other.
        tell("stuck", [2])
        os._exit(75)
    if count == 2:
        time.sleep(1)
        mend = ["ip", "-n", space, "link", "set", "dev", "eth0", "up"]
        if rank == 0: subprocess.run(mend, check=True)
        (folder / "mended").touch()
        ends_when_asked()
"""


@pytest.mark.system
@pytest.mark.hosts
@pytest.mark.timeout(300)
def test_a_host_whose_link_is_cut_is_lost_and_back_when_it_is_mended(tmp_path, capfd):
    with EmulatedCluster(3) as hosts:
        command = (*script(tmp_path, CUT), f"{hosts.name_prefix}-1")
        ground = EmulatedPool(testbed=hosts, command=command, planned_processes=3)
        able = FeasibleCounts(counts=(2, 3))
        assert (
            run_elastic(ground, able, RestartPolicy(max_restarts=1), rejoin_after_s=0.1)
            == 0
        )
    starts = (tmp_path / "starts").read_text().split("\n")[:-1]
    assert starts == ["3 3", "2 3", "3 3"]
    err = capfd.readouterr().err
    assert "lost: h1\n" in err
    assert "2 of 3 processes, without h1" in err


def test_nobody_is_taken_back_before_there_is_something_to_save(tmp_path, capfd):
    """Process 0 says so; what it writes for the launcher is not shown."""
    text = """
        if first and rank == 1:
            others()
            sys.exit(1)
        if count == 1 or first: others()
        if count == 1:
            time.sleep(3)
            (folder / "trains").touch()
            tell("training")
        if count == 1 or first: ends_when_asked()
        assert (folder / "trains").exists()
    """
    ground = LocalPool(command=script(tmp_path, text), num_slots=2)
    able = FeasibleCounts(counts=(1, 2), reports_training=True)
    assert (
        run_elastic(ground, able, RestartPolicy(max_restarts=1), rejoin_after_s=1.5)
        == 0
    )
    assert "training" not in "".join(capfd.readouterr())


def config(*words):
    plan = "plan.mesh.data=4", "plan.mesh.spatial_h=2"
    return resolve_config("digits", ("data.batch=64", *plan, *words)).config


class TestAble:
    def test_counts_between_that_do_not_divide_the_batch_are_left_out(self):
        found = feasible_counts(
            config(), ProcessRange(min_processes=2, max_processes=4)
        )
        assert found.counts == (2, 4)
        assert found.infeasible_reasons == (
            "with 3, data 3 x spatial_h 2: data.batch = 64 is no multiple of 3",
        )
        assert feasible_counts(
            config("data.batch=96"), ProcessRange(min_processes=1, max_processes=4)
        ).counts == (*(1, 2, 3, 4),)

    @pytest.mark.parametrize(
        ("words", "span", "remedy"),
        [
            ((), "3:4", "-n 4 or -n 2:4"),
            ((), "1:3", "-n 1:2, or a plan of 6 devices"),
            (("model.norm=replica",), "2:4", "model.norm=global"),
            (("plan.reduce.algorithm=int8",), "1:4", "-n 2:4"),
            (("plan.reduce.algorithm=swing", "data.batch=96"), "3:4", "-n 4 or -n 2:4"),
        ],
    )
    def test_what_cannot_work_is_refused_with_the_nearest(self, words, span, remedy):
        with pytest.raises(BadInput) as refused:
            feasible_counts(config(*words), parse_process_range(span, 64))
        assert remedy in str(refused.value)

    def test_before_anything_is_started(self, capfd):
        words = "-n", "3:4", "--", "train", "digits", "data.batch=64"
        assert main(["launch", "local", *words]) == 2
        out, err = capfd.readouterr()
        assert "3 of 4 processes cannot run this plan" in err
        assert "-n 4 or -n 2:4" in err
        assert out == ""


class TestFewer:
    @pytest.mark.parametrize(
        ("mesh", "count", "title"),
        [
            ({"data": 4, "spatial_h": 2}, 3, "data 3 x spatial_h 2"),
            ({"data": 8, "tensor": 2}, 2, "data 4 x tensor 2"),
            ({"fsdp": 8}, 2, "fsdp 4"),
            ({"fsdp": 8}, 3, "data 3 x fsdp 2"),
            ({"replica": 2, "data": 4}, 1, "replica 2"),
        ],
    )
    def test_the_axes_of_the_batch_follow(self, mesh, count, title):
        assert resize_plan(Plan(mesh=MeshShape(**mesh)), count, 4).title == title

    def test_a_plan_without_such_an_axis_is_refused(self):
        with pytest.raises(BadInput, match="no layout for 3 of 4 processes"):
            resize_plan(Plan(mesh=MeshShape(spatial_h=4)), 3, 4)


def said(number, beat, phase="compute"):
    return ProcessHeartbeat(
        number=number, step=8, phase=phase, beat=beat, line="mine.py:3 (read)"
    )


@pytest.mark.parametrize(
    ("before", "after", "rank", "named"),
    [
        ({0: (5, 1), 1: (4, 1)}, {0: (5, 2), 1: (4, 2)}, 0, (1,)),
        (
            {0: (5, 1), 1: (4, 1), 2: (4, 1)},
            {0: (5, 2), 1: (4, 2), 2: (4, 2)},
            0,
            (1, 2),
        ),
        ({0: (5, 1), 1: (5, 1)}, {0: (5, 2), 1: (5, 1)}, 0, (1,)),
        ({}, {}, 1, (0,)),
        ({}, {}, 0, (0,)),
        ({0: (5, 1), 1: (5, 1)}, {0: (5, 2), 1: (5, 2)}, 0, ()),
    ],
)
def test_every_verdict_names_ranks_for_the_launcher(before, after, rank, named):
    given = [{r: said(*x) for r, x in each.items()} for each in (before, after)]
    mine = ProcessGroup(rank=rank, size=max(2, len(before)))
    found = diagnose_hang(*given, mine, said(5, 2), 52.0)
    assert found.ranks == named


class TestWords:
    @pytest.mark.parametrize("text", ["2:", "a", "4:2", "0:4", "2:65", "1:2:3"])
    def test_what_is_no_number_of_processes(self, text):
        with pytest.raises(BadInput, match="-n"):
            parse_process_range(text, 64)

    def test_hosts_are_named_and_n_says_how_many(self):
        with pytest.raises(BadInput, match=r"--hosts hosts.txt -n 2:8"):
            parse_hosts("2:8")

    def test_more_than_there_are_hosts(self, capfd):
        words = "--hosts", "a,b", "-n", "2:4", "--", "train", "digits"
        assert main(["launch", "ssh", *words]) == 2
        assert "-n is between 1 and 2" in capfd.readouterr().err

    @pytest.mark.parametrize("after", ["0", "-1"])
    def test_a_time_that_cannot_be(self, after, capfd):
        words = "-n", "1:2", "--rejoin-after", after, "--", "true"
        assert main(["launch", "local", *words]) == 2
        assert "--rejoin-after is above 0" in capfd.readouterr().err

    def test_what_comes_back_needs_a_range(self, capfd):
        words = "-n", "2", "--rejoin-after", "3", "--", "true"
        assert main(["launch", "local", *words]) == 2
        assert "--rejoin-after is for a range" in capfd.readouterr().err

    def test_print_says_for_how_many_the_plan_is(self, capfd):
        assert main(["launch", "local", "-n", "2:4", "--print", "--", "true"]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert len(lines) == 4
        assert all("JAXDIST_PLANNED=4" in line for line in lines)

    def test_mpi_has_one_number(self, capfd):
        words = "-n", "2:4", "--print", "--", "true"
        assert main(["launch", "mpi", *words]) == 2
        assert "-n 4" in capfd.readouterr().err
