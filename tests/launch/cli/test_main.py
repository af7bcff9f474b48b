"""The command line: help, exit codes, and the commands that only read."""

import errno
import json
import shlex
import subprocess
import sys
import warnings

import pytest

from jaxdist.core.errors import BadInput, JaxdistWarning, RetryableError
from jaxdist.launch.cli import main
from jaxdist.launch.cli.option_aliases import read_words
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import write_config_lock
from jaxdist.train.optimizers import OptimConfig

LIGHT = """
import sys
from jaxdist.launch.cli.main import main
code = main(sys.argv[1:])
heavy = {"jax", "flax", "optax", "orbax", "grain", "numpy"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


@pytest.fixture
def answer(capsys):
    def run(*words):
        code = main.main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def process(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["config", "--help"],
        ["config", "digits", "optim.lr=0.3"],
        ["experiments"],
    ],
)
def test_commands_that_only_talk_import_nothing_heavy(words):
    done = process(sys.executable, "-c", LIGHT, *words)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_header_of_a_run_comes_before_what_is_heavy(tmp_path):
    """Its devices and samples take seconds: until then a terminal was empty."""
    heavy = (
        "import sys, os\n"
        "class Heavy:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name in ('jax', 'flax', 'numpy', 'grain'):\n"
        "            sys.stderr.flush()\n"
        "            os._exit(7)\n"
        "sys.meta_path.insert(0, Heavy())\n"
        "from jaxdist.launch.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    words = ("train", "digits", f"run.dir={tmp_path}", "--lr", "0.1")
    done = process(sys.executable, "-c", heavy, *words)
    assert done.returncode == 7
    first, second = done.stderr.splitlines()[:2]
    assert first == "keys:     --lr is optim.lr"
    assert " ".join(second.split()).startswith(f"train {tmp_path}")
    assert not list(tmp_path.iterdir())


def test_help_lists_every_command_and_ends_with_the_exit_codes(answer):
    code, out, _ = answer("--help")
    assert code == 0
    for name in main.command_names():
        assert f"  {name} " in out
    assert (
        out.splitlines()[-1]
        == "exit codes: 0 done, 1 failed, 2 bad input, 75 try again"
    )
    assert all(len(line) <= 80 for line in out.splitlines())


def test_each_command_is_in_one_group(answer):
    listed = [name for names in main.COMMAND_GROUPS.values() for name in names]
    assert sorted(listed) == sorted(main.command_names())
    assert tuple(main.COMMAND_GROUPS) == (
        *("Train", "Plan", "Inspect", "Launch", "Machine"),
    )
    out = answer("--help")[1]
    assert all(
        f"\n{group}\n  {names[0]} " in out
        for group, names in main.COMMAND_GROUPS.items()
    )


def parsers(name):
    """The parser of a command, and those of its forms."""
    parser = main.make_parser(name)
    return [parser, *parser.forms.values()]


@pytest.mark.parametrize("name", main.command_names())
def test_every_help_ends_with_examples_that_work(answer, name):
    code, out, _ = answer(name, "--help")
    assert code == 0
    assert out == main.make_parser(name).format_help()
    for parser in parsers(name):
        help_text = parser.format_help()
        head, examples = help_text.split("\nexample", 1)
        assert head.splitlines()[-1].startswith("exit codes:")
        lines = [line.strip() for line in examples.splitlines()[1:]]
        assert lines == list(parser.examples)
        for line in lines:
            _, first, *words = shlex.split(line)
            args = read_words(main.make_parser(first), words).args
            if hasattr(args, "overrides") and getattr(args, "experiment", None):
                resolve_config(args.experiment, args.overrides)


@pytest.mark.parametrize("name", main.command_names())
def test_no_command_is_cut_at_80_columns(monkeypatch, name):
    """Words and commands in backticks are whole, in all helps of a command."""
    monkeypatch.setenv("COLUMNS", "80")
    for parser in parsers(name):
        text = parser.format_help()
        assert all(len(line) <= 80 for line in text.splitlines())
        assert all(line.count("`") % 2 == 0 for line in text.splitlines())
        flat = " ".join(text.split())
        for action in parser.visible_actions:
            if action.help:
                assert " ".join(action.help.replace("%%", "%").split()) in flat


def test_help_of_a_command_may_be_asked_for_in_front(answer):
    assert answer("help", "train") == answer("train", "--help")
    assert answer("help") == answer("--help")


def test_no_command_is_bad_input(answer):
    code, out, err = answer()
    assert (code, out) == (2, "")
    assert "usage:" in err


def test_the_module_runs_too():
    done = process(sys.executable, "-m", "jaxdist.launch", "--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "jaxdist")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cnfig"], "error: no command cnfig\n  remedy   did you mean config? "),
        (
            ["digits"],
            "error: no command digits\n  remedy   did you mean train digits? ",
        ),
        (["my.py"], "error: no command my.py\n  remedy   did you mean train my.py? "),
        (["oracle"], "error: oracle is no command by itself any more\n"),
        (["--hlp"], "error: no option --hlp\n  remedy   did you mean --help? "),
        (
            ["config", "digits", "--jsn"],
            "error: no option --jsn\n  remedy   did you mean --json? ",
        ),
        (["config"], "error: the following arguments are required: EXPERIMENT\n"),
        (["experiments", "digit"], "error: no experiment named digit\n"),
        (["diff", "a", "b", "--dir", "/proc/none"], "error: no run a\n"),
        (["plan", "verfy", "digits"], "error: plan has no form verfy\n"),
        (["plan", "--top", "3", "verfy"], "error: plan has no form verfy\n"),
    ],
)
def test_bad_words_exit_with_2(answer, words, said):
    code, out, err = answer(*words)
    assert (code, out) == (2, "")
    assert err.startswith(said)


def test_two_mistakes_are_two_blocks(answer):
    assert answer("config", "digit", "optm.lr=0.1", "--json") == (
        2,
        "",
        "error: no experiment named digit\n"
        "  remedy   did you mean digits? list them with: jaxdist experiments\n"
        "\n"
        "error: no key optm.lr\n"
        "  remedy   did you mean optim.lr? list them with: jaxdist config digits\n",
    )


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BadInput("no", remedy="yes"), 2, "error: no\n  remedy   yes\n"),
        (RetryableError("saved at step 3"), 75, "saved at step 3\n"),
        (KeyboardInterrupt(), 130, "\nstopped from the keyboard\n"),
        (
            OSError(errno.ENOSPC, "No space left", "runs/a"),
            1,
            "error: the disk is full\n",
        ),
        (RuntimeError("boom"), 1, "Traceback"),
    ],
)
def test_errors_become_exit_codes(answer, monkeypatch, error, code, said):
    def fail(words):
        raise error

    monkeypatch.setattr(main, "_dispatch", fail)
    got, out, err = answer("train")
    assert (got, out) == (code, "")
    assert err.startswith(said)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_options_may_stand_anywhere(answer, place):
    words = ["config", "digits", "seed=3"]
    words.insert(place, "--json")
    code, out, _ = answer(*words)
    assert code == 0
    assert json.loads(out)["values"]["seed"] == {"value": 3, "by": "command line"}


@pytest.mark.parametrize(
    "words",
    [
        ("local", "-n", "2", "--print"),
        ("--print", "-n", "2", "local"),
        ("-n=2", "local", "--print"),
    ],
)
def test_options_may_stand_before_a_form(capfd, words):
    assert main.main(["launch", *words, "--", "true"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("launch", "--", "true"), "required: action"),
        (("launch", "lokal", "-n", "2"), "did you mean local?"),
        (("launch", "-n", "2", "lokal"), "no action lokal"),
        (("plan", "--cluster", "stages", "digits"), "--cluster stages, --devices None"),
        (("plan", "--output", "stages"), "required: EXPERIMENT"),
        (("testbed", "up", "--cut"), "jaxdist testbed fail takes it"),
    ],
)
def test_a_form_is_told_from_values_of_options(answer, words, said):
    code, out, err = answer(*words)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_a_form_that_needs_no_word(answer):
    words = ("digits", "--cluster", "testbed", "--devices", "2", "--top", "1")
    code, out, _ = answer("plan", "layouts", *words)
    assert code == 0
    assert out.splitlines()[0] == answer("plan", *words)[1].splitlines()[0]
    assert "without one of these words: layouts" in answer("plan", "--help")[1]


def test_config_marks_who_set_each_value(answer):
    code, out, _ = answer("config", "digits", "optim.lr=0.3")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    usual = OptimConfig().lr
    assert ["●", "optim.lr", "0.3", "(default", f"{usual})"] in lines
    assert ["○", "plan.mesh.data", "4", "(default", "1)"] in lines
    assert ["·", "seed", "0"] in lines
    assert out.rstrip().endswith("try      jaxdist train digits")


def test_config_in_ascii():
    done = subprocess.run(
        [sys.executable, "-m", "jaxdist.launch", "config", "digits", "seed=1"],
        env={"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"},
        capture_output=True,
        check=True,
    )
    text = done.stdout.decode("ascii")
    assert "  * seed " in text
    assert "  o epochs " in text


def test_experiments(answer):
    assert "digits" in answer("experiments")[1]
    assert "Expected score" in answer("experiments", "digits")[1]
    found = json.loads(answer("experiments", "--json")[1])
    assert "digits" in {entry["name"] for entry in found["experiments"]}


@pytest.fixture
def two_runs(tmp_path):
    for name, words in (
        ("a", []),
        ("b", ["optim.lr=0.3", "plan.replicated_axes=tensor"]),
    ):
        (tmp_path / name).mkdir()
        write_config_lock(RunFolder(tmp_path / name), resolve_config("digits", words))
    return tmp_path


def test_diff(answer, two_runs):
    code, out, _ = answer("diff", "a", "b", "--dir", str(two_runs))
    assert code == 0
    assert "2 keys and 0 packages differ" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["plan.replicated_axes", "·", "●", "tensor"] in rows
    assert (
        "the same"
        in answer("diff", "a", str(two_runs / "a"), "--dir", str(two_runs))[1]
    )


def test_diff_as_json(answer, two_runs):
    found = json.loads(answer("diff", "a", "b", "--dir", str(two_runs), "--json")[1])
    assert found["keys"]["plan.replicated_axes"] == {"a": [], "b": ["tensor"]}
    assert found["packages"] == {}


def test_a_reader_that_leaves_sees_no_traceback():
    words = [sys.executable, "-m", "jaxdist.launch", "config", "digits"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as done:
        done.stdout.close()
        assert done.stderr.read() == b""


def test_remarks_are_one_line(capsys, monkeypatch):
    """Others' warnings keep the place they come from."""

    def noisy(words):
        warnings.warn("two of your images are damaged", JaxdistWarning, stacklevel=1)
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(main, "_dispatch", noisy)
    warnings.simplefilter("always")
    assert main.main(["train"]) == 0
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "warn: two of your images are damaged"
    assert "DeprecationWarning: old call" in others[0]


def test_commands_under_their_old_names_work_and_say_the_new_ones(answer):
    words = ("digits", "plan.mesh.data=4", "plan.mesh.spatial_h=1", "--json")
    new = answer("predict", *words, "--cluster", "testbed")
    assert new[0] == 0
    for old in (
        ("oracle", "predict", *words, "--cluster", "testbed"),
        ("oracle", "--cluster", "testbed", "predict", *words),
    ):
        code, out, err = answer(*old)
        assert (code, out) == new[:2]
        assert err == "renamed: oracle predict is now predict\n"
    assert answer("oracle", "score", "none.csv")[2].endswith(
        answer("score", "none.csv")[2]
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("plan digits --devices 2 --explain 3", "explain digits --devices 2 --rank 3"),
        ("plan digits --explain", "explain digits"),
        ("plan digits --verify 4 --rounds 7", "verify digits --first 4 --rounds 7"),
        ("calibrate --quick", "machine --quick"),
        ("calibrate digits --devices 2", "layers digits --devices 2"),
        ("calibrate measure digits seed=1", "layers digits seed=1"),
    ],
)
def test_forms_that_were_options_are_read_as_they_were(old, new):
    """And the old spellings are in no help."""
    name, *words = old.split()
    parser = main.make_parser(name)
    ours, old_ones = (vars(parser.parse(w)) for w in (new.split(), words))
    unset = {"action": "", "config_file": None, "hf_config": None}
    assert {**ours, **unset} == {**old_ones, **unset}
    for one in parsers(name):
        for action in one.visible_actions:
            assert not {"--verify", "--explain"} & set(action.option_strings)
    assert "measure" not in parser.forms


def test_a_help_breaks_no_word_at_a_hyphen_and_no_command_at_a_space(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    parser = CommandParser("jaxdist x", "a summary")
    command = "`jaxdist plan --devices 8`"
    parser.add_argument(
        "--y", help=f"some words {command} and then there is also a --dry-run-option"
    )
    lines = [line.strip() for line in parser.format_help().splitlines()]
    assert sum(command in line for line in lines) == 1
    assert sum("--dry-run-option" in line for line in lines) == 1


def test_a_file_with_nearly_the_name_of_a_form_is_an_experiment(
    answer, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "verfy").write_text("")
    _, _, err = answer("plan", "verfy", "--cluster", "cpu-fake", "--devices", "2")
    assert err
    assert "has no form" not in err
