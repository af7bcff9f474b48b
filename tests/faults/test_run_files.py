"""Files of a run folder that are damaged or of something else: left out or refused."""

import json
import random
import re
import shutil

import pytest

pytestmark = pytest.mark.timeout(300)

SMALL = (
    *("model.width=4", "data.batch=32", "epochs=0.2", "checkpoint.every_steps=4"),
    *("plan.mesh.data=1", "plan.mesh.spatial_h=1"),
)
COMMANDS = {
    "compare": ("compare", "RUN", "--cluster", "testbed"),
    "report": ("report", "RUN"),
    "status": ("status", "RUN"),
    "status --json": ("status", "RUN", "--json"),
    "eval": ("eval", "RUN"),
    "verify": ("ckpt", "verify", "RUN"),
    "ls": ("ckpt", "ls", "RUN"),
    "hash": ("ckpt", "hash", "RUN"),
    "diff": ("diff", "RUN", "RUN"),
    "trace": ("trace", "RUN", "-o", "OUT"),
}
READERS = {
    "config.lock.json": ("compare", "report", "eval", "diff", "hash"),
    "plan.json": ("compare", "report"),
    "summary.json": ("compare", "report", "status"),
    "metrics.jsonl": ("report", "status", "status --json"),
    "spans.jsonl": ("report", "trace"),
    "status.json": ("status", "status --json"),
    "compared.json": ("report",),
    "measured.json": ("compare", "report"),
    "shuffle.json": ("report",),
    "samples.json": ("report",),
    "compiled.json": ("report",),
    "drift.jsonl": ("report",),
}
"""What reads a file before anything else of the run."""
MUST_REFUSE = {
    ("config.lock.json", command) for command in ("compare", "eval", "diff")
} | {(name, "compare") for name in ("plan.json", "summary.json", "measured.json")}
REFUSAL = re.compile(r"error: .+\n(  (rule  |values|remedy)   .+\n( {11}.+\n)*)+$")


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "digits"
    where = f"run.dir={folder.parent}", f"run.name={folder.name}"
    code, _, err = job.call("train", "digits", *where, f"data.dir={job.data}", *SMALL)
    assert code == 0, err
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A finished run, to be spoilt."""
    folder = shutil.copytree(trained, tmp_path / "runs" / "digits")
    (folder / "report.html").unlink(missing_ok=True)
    return folder


def tree(folder):
    return {p: p.is_file() and p.read_bytes() for p in folder.rglob("*")}


def obeys(job, run, command):
    """Run a command: it works, or refuses in the form of all refusals; its code."""
    out = run.parent / "trace.json"
    before = tree(run.parent)
    names = {"RUN": str(run), "OUT": str(out)}
    code, _, err = job.call(*(names.get(word, word) for word in COMMANDS[command]))
    assert "Traceback" not in err
    assert code in (0, 2), err
    if code:
        assert REFUSAL.match(err), err
        assert tree(run.parent) == before
    elif command == "trace":
        json.loads(out.read_text(), parse_constant=pytest.fail)
    out.unlink(missing_ok=True)
    return code, err


WHOLE_FILE = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "a list": b"[1, 2]\n[3]\n",
    "a number": b"7",
    "another object": b'{"a": {"b": [null]}}\n{"kind": 3}\n',
    "not a number": b'{"step": NaN, "loss": NaN, "values": NaN, "mesh": NaN}\n' * 2,
    "too deep": b"[" * 5000,
    "a large number": b'{"step": 1%s}\n' % (b"0" * 5000),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("damage", WHOLE_FILE)
def test_a_file_that_is_something_else(job, run, name, damage):
    path = run / name
    path.write_bytes(WHOLE_FILE[damage])
    for command in READERS[name]:
        code, err = obeys(job, run, command)
        if (name, command) in MUST_REFUSE:
            assert code == 2
            assert name in err


@pytest.mark.parametrize("name", ["config.lock.json", "plan.json", "summary.json"])
def test_a_file_that_was_cut_off_or_is_gone(job, run, name):
    whole = (run / name).read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-3], None):
        (run / name).unlink()
        if damaged is not None:
            (run / name).write_bytes(damaged)
        for command in READERS[name]:
            code, err = obeys(job, run, command)
            if (name, command) in MUST_REFUSE:
                assert code == 2, err
        (run / name).write_bytes(whole)


def test_a_damaged_record_is_refused_before_a_step_is_traced(job, run, monkeypatch):
    (run / "measured.json").write_bytes(b"7")
    describer = "jaxdist.launch.training.job.abstract_step.StepDescriber"
    monkeypatch.setattr(describer, None)
    assert "measured.json" in obeys(job, run, "compare")[1]


def test_a_lock_that_is_gone_is_no_run(job, run):
    (run / "config.lock.json").unlink()
    for command in COMMANDS:
        if not command.startswith("status"):
            assert obeys(job, run, command)[0] == 2


OTHERS = (
    None,
    True,
    -1,
    0,
    3.5,
    10**400,
    float("nan"),
    "text",
    "",
    [],
    [1],
    {},
    {"a": 1},
)


def places(value, at=()):
    """Return the path of every value in a tree."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    return found + [place for key, each in items for place in places(each, (*at, key))]


def changed(whole, place, other):
    """Return a tree with another value in one place."""
    copied = json.loads(json.dumps(whole))
    inner = copied
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    return copied


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("config.lock.json", ("diff", "report")),
        ("summary.json", ("report", "status")),
        ("plan.json", ("report",)),
        ("status.json", ("status", "status --json")),
    ],
)
def test_a_field_of_another_type(job, run, name, commands):
    path, draw = run / name, random.Random(0)
    whole = json.loads(path.read_text())
    for place in draw.sample(places(whole), k=min(25, len(places(whole)))):
        path.write_text(json.dumps(changed(whole, place, draw.choice(OTHERS))))
        for command in commands:
            obeys(job, run, command)


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("metrics.jsonl", ("report", "status", "status --json")),
        ("spans.jsonl", ("report", "trace")),
    ],
)
def test_a_row_of_another_type(job, run, name, commands):
    path, draw = run / name, random.Random(0)
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for _ in range(25):
        at = draw.randrange(len(rows))
        place = draw.choice(places(rows[at]))
        row = json.dumps(changed(rows[at], place, draw.choice(OTHERS)))
        path.write_text("\n".join([*lines[:at], row, *lines[at + 1 :], row]) + "\n")
        for command in commands:
            obeys(job, run, command)


def test_a_loss_below_zero_is_one(job, run):
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"loss": -3.5}))
    assert obeys(job, run, "report")[0] == 0


@pytest.mark.parametrize(
    ("name", "place", "other"),
    [
        ("summary.json", ("devices",), 0),
        ("summary.json", ("samples_per_s",), "fast"),
        ("config.lock.json", ("values", "data.batch", "value"), "many"),
    ],
)
def test_a_field_that_cannot_be_is_named(job, run, name, place, other):
    path = run / name
    path.write_text(json.dumps(changed(json.loads(path.read_text()), place, other)))
    code, err = obeys(job, run, "compare")
    assert code == 2
    assert str(path) in err
    assert str(other) in err


def test_all_of_them_work_on_a_run_that_is_whole(job, run):
    found = {command: obeys(job, run, command)[0] for command in COMMANDS}
    assert found == dict.fromkeys(COMMANDS, 0)
