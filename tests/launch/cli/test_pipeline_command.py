"""`jaxdist pipeline draw`: what it prints, writes and refuses."""

import json

import pytest

from jaxdist.launch.cli.main import main


@pytest.fixture
def answer(capsys):
    def run(*words):
        code = main(["pipeline", "draw", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_schedule_is_drawn_and_counted(answer):
    code, out, _ = answer("--schedule", "1f1b", "--stages", "4", "--microbatches", "8")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "1f1b, 4 stages, 8 microbatches"
    assert lines[2].endswith("╱╱╱[7]  4 in flight")
    assert "  22 ticks, 27.3 % of them idle; in flight by device: 4, 3, 2, 1" in lines
    assert lines[-1].endswith("--schedule 1f1b --stages 4 --microbatches 8 -o 1f1b.svg")


def test_no_line_is_wider_than_the_page(answer):
    _, out, _ = answer("--schedule", "gpipe", "--microbatches", "64")
    assert max(len(line) for line in out.splitlines()[:-3]) <= 100
    assert "more ticks" in out


def test_the_commands_to_try_run(answer):
    chunked = ("--schedule", "interleaved", "--chunks", "2")
    _, out, _ = answer(*chunked)
    *_, compare, picture = out.splitlines()
    assert answer(*compare.split("draw ")[1].split())[0] == 0
    assert "--chunks 2 -o interleaved.svg" in picture


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("pipedream", "--replicas", "2,1,1"),
            "20 ticks, 40.0 % of them idle; in flight by device: 2, 2, 2, 1; "
            "versions by stage: 2, 2, 1",
        ),
        (("pipedream", "--replicas", "2,1,1", "--vertical-sync"), "stage: 2, 4, 4"),
        (("pipedream",), "versions by stage: 4, 3, 2, 1"),
        (
            ("pipedream-2bw", "--stages", "3", "--microbatches-per-update", "4"),
            "by stage: 2, 2, 2",
        ),
        (("pipedream-2bw",), "versions by stage: 2, 2, 2, 2"),
    ],
)
def test_schedules_without_a_flush_count_versions_too(answer, words, says):
    code, out, _ = answer("--schedule", *words)
    assert code == 0
    assert says in out
    *_, own = out.splitlines()
    assert own.endswith(f" -o {words[0]}.svg")
    assert all(word in own.split() for word in words)


def test_versions_as_json(answer):
    code, out, _ = answer("--schedule", "pipedream", "--replicas", "2,1", "--json")
    tree = json.loads(out)
    assert code == 0
    assert tree["versions_held"] == [2, 1]
    assert tree["forward_versions"] == [[0, 0, 0, 0, 1, 1, 2, 2], [*range(8)]]
    assert tree["backward_versions"] == tree["forward_versions"]
    assert len(tree["applied"][0]) == 4


def test_the_picture_is_written(answer, tmp_path):
    code, out, _ = answer("-o", str(tmp_path / "timeline.svg"))
    assert code == 0
    assert (tmp_path / "timeline.svg").read_text().startswith("<svg ")
    assert ".svg" not in out


def test_as_json(answer, tmp_path):
    code, out, _ = answer("--stages", "2", "--microbatches", "2", "--json")
    tree = json.loads(out)
    assert code == 0
    assert (tree["ticks"], tree["in_flight"]) == (6, [2, 1])
    assert tree["idle"] == pytest.approx(1 / 3)
    assert tree["table"][0] == [{"kind": "forward", "stage": 0, "microbatch": 0}, None]


def test_signs_are_ascii_where_they_must_be(answer, monkeypatch):
    monkeypatch.setattr("rich.console.Console.encoding", "ascii")
    _, out, _ = answer("--microbatches", "40")
    assert out.isascii()
    assert " 0  .... 1  .... " in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--schedule", "1f2b"), "did you mean 1f1b?"),
        (
            ("--schedule", "interleaved", "--chunks", "2", "--microbatches", "6"),
            "values   --microbatches 6, --stages 4\n"
            "  remedy   --microbatches 4 or --microbatches 8",
        ),
        (("--stages", "0"), "remedy   --stages 1"),
        (("--schedule", "interleaved"), "remedy   --chunks 2"),
        (("--chunks", "2"), "remedy   --schedule interleaved\n"),
        (
            ("--schedule", "pipedream", "--microbatches-per-update", "8"),
            "does not take --microbatches-per-update\n  rule     it is for pipedream-2bw",
        ),
        (("--replicas", "2,1"), "remedy   --schedule pipedream\n"),
        (("--vertical-sync",), "does not take --vertical-sync"),
        (
            ("--schedule", "pipedream", "--replicas", "3,1"),
            "remedy   --microbatches 6 or --microbatches 9",
        ),
        (
            ("--schedule", "pipedream", "--stages", "3", "--replicas", "2,1"),
            "values   --stages 3, 2 numbers of replicas\n  remedy   --stages 2",
        ),
        (("--schedule", "pipedream", "--replicas", "2,x"), "not numbers with commas"),
        (
            ("--schedule", "pipedream-2bw", "--microbatches-per-update", "2"),
            "remedy   --microbatches-per-update 4",
        ),
        (("-o", "/nowhere/a.svg"), "no folder /nowhere"),
        (("--stages", "x"), "argument --stages: invalid int value: 'x'"),
    ],
)
def test_what_cannot_be_drawn_is_answered(answer, words, says):
    code, out, err = answer(*words)
    assert (code, out) == (2, "")
    assert says in err
