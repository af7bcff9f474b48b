"""`jaxdist simulate`: what it prints, and what it refuses."""

import json

import pytest

from jaxdist.launch.analysis.collective_simulation import (
    SimulationQuery,
    run_simulation,
)
from jaxdist.launch.cli.main import main


@pytest.fixture
def answer(capsys):
    def run(*words):
        code = main(["simulate", "allreduce", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def found(answer, *words):
    code, out, err = answer(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_keys_are_there(answer):
    tree = found(
        answer,
        *("--algorithm", "halving_doubling", "--topology", "dln"),
        *(
            "--ranks",
            "64",
            "--mib",
            "64",
            "--bandwidth-sharing",
            "maxmin",
            "--protocol-overheads",
            "ideal",
        ),
    )
    assert tree["seconds"] == pytest.approx(10.5876e-3, rel=1e-5)
    assert tree["phi_max"] == 1
    assert len(tree["phases"]) == 12
    total = sum(phase["seconds"] for phase in tree["phases"])
    assert total == pytest.approx(tree["seconds"])
    assert tree["seconds"] > tree["bound_s"]


def test_settings_sparse_and_placement_reach_the_simulation(answer):
    base = (
        "--topology",
        "fat-tree",
        "--algorithm",
        "halving-doubling",
        "--ranks",
        "64",
    )
    plain = found(answer, *base)
    thin = found(answer, *base, "oversubscription=2")
    dealt = found(answer, *base, "oversubscription=2", "--placement", "dealt")
    sparse = found(answer, *base, "--density", "0.0078")
    assert sparse["seconds"] < plain["seconds"] < thin["seconds"] < dealt["seconds"]


def test_a_file_is_a_topology(answer, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("topology: fat_tree\nuplinks: 2\nper_leaf: 4\n", encoding="utf-8")
    tree = found(answer, "--topology", str(file), "--ranks", "16")
    assert tree["ports"] == 6


def test_groups_and_halos_are_told_apart(answer):
    words = ("--ranks", "16", "--group", "4", "--halo-mib", "1", "--algorithm", "ring")
    tree = found(answer, *words)
    names = [each["name"] for each in tree["collectives"]]
    assert names == ["ring"] * 4 + ["halos"]
    assert tree["phases"] == []


def test_less_contention_is_searched_for(answer):
    words = (
        "--topology",
        "dln",
        "per_switch=4",
        "--ranks",
        "64",
        "--contention-search",
    )
    tree = found(answer, *words, "--algorithm", "halving_doubling_far")
    assert tree["mitigated"]["seconds"] < 1.02 * tree["bound_s"] < tree["seconds"] / 3


def test_the_commands_to_try_run(answer):
    _, out, _ = answer("--topology", "torus", "--ranks", "16", "--plot")
    tried = [line.split("simulate allreduce ")[1] for line in out.splitlines()[-2:]]
    for words in tried:
        code, out, _ = answer(*words.split())
        assert code == 0
    best = out.splitlines()[-1].split("simulate allreduce ")[1]
    assert answer(*best.split())[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--topology", "dlm"), "did you mean dln"),
        (("--algorithm", "rings"), "ring"),
        (("--algorithm", "swing", "--ranks", "12"), "power of two"),
        (("--topology", "tsubame3", "--ranks", "257"), "at most 256 ranks"),
        (("--topology", "none.yaml"), "no file none.yaml"),
        (("--ranks", "0"), "at least 1"),
        (("--mib", "-1"), "above 0"),
        (("--mib", "nan"), "above 0"),
        (("--density", "2"), "at most 1"),
        (("--bandwidth-sharing", "rrt"), "did you mean rtt"),
        (("--protocol-overheads", "smp"), "did you mean smpi"),
        (("--synchronization", "step"), "did you mean steps"),
        (("--placement", "1,1", "--ranks", "2"), "each used once"),
        (("--group", "3"), "--group"),
        (("--ranks-per-host", "4"), "two_level_ring"),
        (("per_leaf",), "key=value"),
        (("bandwidth=12.5furlongs",), "12.5GB/s"),
        (("--density", "0.1", "--contention-search"), "without --density"),
        (("--ranks", "many"), "--help"),
    ],
)
def test_what_cannot_be_is_refused(answer, words, says):
    code, out, err = answer(*words)
    assert code == 2
    assert says in err
    assert out == ""


def test_python_asks_as_the_command_does(answer):
    query = SimulationQuery(ranks=16, topology="torus", algorithm="ring")
    tree = found(answer, *query.command.split()[3:])
    assert run_simulation(query).to_dict() == tree
