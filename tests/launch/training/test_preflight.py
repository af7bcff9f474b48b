"""Preflight: a process that is not like the others is named, and nothing computes."""

import sys
import textwrap
import time
from pathlib import Path

from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.training.preflight import describe_differences

DOCS = Path(__file__).parents[3] / "docs"
TRAIN = f"{sys.executable} -m jaxdist.launch train"
BEGIN = """
import sys, time
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.distributed import initialize
from jaxdist.launch.training.preflight import check_identical, check_clock_skew

rank, mine = initialize(), process_group()
"""


def python(text):
    return sys.executable, "-c", BEGIN + textwrap.dedent(text)


def train(job, tmp_path, before, after=""):
    """Train on two processes by a shell's words: code, error, seconds."""
    words = f"digits run.dir={tmp_path} data.dir={job.data} model.width=4 epochs=0.1"
    line = f"{before} exec {TRAIN} {words} {after}"
    how = "launch", "local", "-n", 2, "--devices-per-process", 1, "--"
    begin = time.monotonic()
    code, _, err = job.run(*how, "sh", "-c", line)
    return code, err, time.monotonic() - begin


def test_who_differs_is_named_with_what_and_how():
    alike = {"jax": "1", "seed": "0"}
    assert describe_differences([alike, alike]) == ""
    assert describe_differences([alike, {**alike, "seed": "3"}, alike]) == (
        "rank 1: seed 3 (others: 0)"
    )
    # Of two, process 0 is the one that was meant; of more, most are.
    assert describe_differences([alike, {"jax": "2"}]) == (
        "rank 1: jax 2 (rank 0: 1); rank 1: seed none (rank 0: 0)"
    )
    assert describe_differences([{"jax": "2"}, {"jax": "1"}, {"jax": "1"}]) == (
        "rank 0: jax 2 (others: 1)"
    )


def test_more_than_a_person_reads_is_counted():
    many = {f"key{n}": "1" for n in range(9)}
    assert describe_differences([dict.fromkeys(many, "0"), many]).endswith(
        "; and 5 more"
    )


def test_the_same_refusal_in_all_processes():
    text = """
        from jaxdist.core.errors import BadInput
        check_identical(mine, "one", {"seed": "0"})
        try:
            check_identical(mine, "two", {"seed": str(rank == 2)})
        except BadInput as refused:
            print(refused.values)
    """
    done = Loopback(3).run(python(text), timeout=60)
    assert {each.stdout for each in done} == {"rank 2: seed True (others: False)\n"}


def test_a_clock_that_is_off_is_a_remark_of_process_0():
    text = """
        import warnings
        now = time.time
        time.time = lambda: now() + 100 * rank
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            check_clock_skew(mine)
        print(*(warning.message for warning in seen))
    """
    first, second = Loopback(2).run(python(text), timeout=60)
    assert "rank 1 +100.0 s" in first.stdout or "rank 1 +99" in first.stdout
    assert second.stdout == "\n"


def test_another_setting_on_one_process(job, tmp_path):
    code, err, _ = train(job, tmp_path, "", "optim.lr=0.$((JAXDIST_RANK + 1))")
    assert code == 2
    assert err.count("error:") == 1
    assert "rank 1: optim.lr 0.2 (rank 0: 0.1)" in err
    assert not (tmp_path / "digits").exists()


def test_a_process_with_other_packages(job, tmp_path):
    """Another version of a package comes first on the path of one process."""
    other = tmp_path / "other" / "optax-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: optax\nVersion: 0.0.1\n"
    )
    path = f"[ $JAXDIST_RANK = 0 ] || export PYTHONPATH={other.parent}:$PYTHONPATH;"
    code, err, seconds = train(job, tmp_path, path)
    assert code == 2
    assert err.count("error:") == 1
    assert "rank 1: optax 0.0.1 (rank 0: " in err
    assert seconds < 30


def test_a_step_with_the_same_parameters_work_and_sums(job, tmp_path):
    """What a compiled step does not show either is seen before it is compiled."""
    rank = "int(__import__('os').environ['JAXDIST_RANK'])"
    text = (DOCS / "my.py").read_text()
    changed = text.replace("jax.nn.relu(", f"(jax.nn.relu, jax.nn.tanh)[{rank}](")
    assert changed != text
    (tmp_path / "my.py").write_text(changed)
    words = f"{tmp_path}/my.py run.dir={tmp_path} plan.mesh.spatial_h=1"
    how = "launch", "local", "-n", 2, "--devices-per-process", 1, "--"
    code, _, err = job.run(*how, "train", *words.split())
    assert code == 2, err
    assert err.count("error:") == 1
    assert "rank 1: stablehlo.tanh is there (rank 0: none)" in err


def test_a_process_with_another_network_under_the_same_name(job, tmp_path):
    """A file that is not the same on every host: no setting shows it."""
    wide = "16 - 4 * int(__import__('os').environ['JAXDIST_RANK'])"
    text = (DOCS / "my.py").read_text().replace("(8, 16)", f"(8, {wide})")
    text = text.replace("Linear(16,", f"Linear({wide},")
    (tmp_path / "my.py").write_text(text)
    words = f"{tmp_path}/my.py run.dir={tmp_path} plan.mesh.spatial_h=1"
    how = "launch", "local", "-n", 2, "--devices-per-process", 1, "--"
    code, _, err = job.run(*how, "train", *words.split())
    assert code == 2, err
    assert err.count("error:") == 1
    assert "rank 1: parameters " in err
    assert "rank 1: FLOPs a device " in err
    assert "rank 1: parameter " in err
    assert not (tmp_path / "mine" / "config.lock.json").exists()
