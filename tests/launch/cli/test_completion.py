"""`jaxdist completion`: what a shell is told, and bash with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxdist.launch.cli.completion import SHELLS, answer_shell, complete_words
from jaxdist.launch.cli.main import command_names, main
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import write_config_lock

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a run, an experiment of one's own and a folder."""
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_config_lock(RunFolder(tmp_path / "runs" / name), resolve_config("digits"))
    (tmp_path / "mine.py").touch()
    (tmp_path / "plan.json").touch()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def texts(*words):
    return [one.text for one in complete_words(words)]


def test_commands_come_first():
    assert set(texts("")) == set(command_names())
    assert texts("conf") == ["config"]
    assert texts("--v") == ["--version"]
    assert all(one.about for one in complete_words([""]))


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("train", "dig"), ["digits"]),
        (("train", "mine"), ["mine.py"]),
        (("train", "digits", "--dry"), ["--dry-run"]),
        (("train", "digits", "optim.l"), ["optim.lr="]),
        (("train", "digits", "optim.name=adaf"), ["optim.name=adafactor"]),
        (("train", "digits", "--json", "seed=1", "model.aux=T"), ["model.aux=True"]),
        (("train", "digits", "--plan", "pl"), ["plan.json"]),
        (("train", "digits", "--plan=pl"), ["--plan=plan.json"]),
        (("plan", "digits", "--cluster", "testb"), ["testbed"]),
        (("plan", "sta"), ["stages"]),
        (("plan", "stages", "--work"), ["--workers"]),
        (("plan", "verify", "digits", "--fi"), ["--first"]),
        (("plan", "digits", "--ver"), []),
        (("oracle", "predict", "dig"), ["digits"]),
        (("resume", "f"), ["first"]),
        (("diff", "first", "se"), ["second"]),
        (("report", "--dir", "s"), ["sub/"]),
        (("report", "--dir", "sub", "fi"), []),
        (("report", "--dir=sub", "fi"), []),
        (("train", "digits", "--plan=plan.json", "optim.l"), ["optim.lr="]),
        (("resume", "runs/f"), ["runs/first"]),
        (("ckpt", "v"), ["verify"]),
        (("launch", "l"), ["local"]),
        (("launch", "local", "-n", "2", "--", "tr"), ["train"]),
        (("launch", "local", "-n", "2", "--", "train", "dig"), ["digits"]),
        (("nothing", ""), []),
        (("doctor", "digits", ""), []),
    ],
)
def test_what_may_stand_there(folder, words, some):
    assert texts(*words) == some


@pytest.mark.parametrize("option", [["--dir", "sub"], ["--dir=sub"]])
def test_runs_are_those_of_the_folder_that_is_named(folder, option):
    (folder / "runs" / "first").rename(folder / "sub" / "third")
    assert texts("report", *option, "th") == ["third"]


def test_values_of_a_key_are_those_of_its_type(folder):
    assert texts("train", "digits", "plan.zero=") == ["plan.zero=1", "plan.zero=3"]
    assert texts("train", "digits", "optim.lr=") == []


def test_bash_splits_at_the_equals_sign():
    words = ["train", "digits", "precision", "="]
    assert answer_shell("bash", words) == ["float32 ", "bfloat16 ", "float64 "]
    assert answer_shell("bash", [*words, "b"]) == ["bfloat16 "]
    assert answer_shell("bash", ["train", "digits", "optim.l"]) == ["optim.lr="]
    assert answer_shell("zsh", ["train", "digits", "precision=b"]) == [
        "precision=bfloat16"
    ]
    assert answer_shell("fish", ["resu"])[0].startswith("resume\tresume a stopped")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed(shell, capsys):
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert f"completion words --shell {shell}" in said
    assert main(["completion", "--help"]) == 0
    assert f"jaxdist completion {shell}" in capsys.readouterr().out


def test_bash_completes(folder):
    """The real thing: the script is sourced, and its function fills COMPREPLY."""
    ask = "; ".join(
        f"COMP_WORDS=({line}); COMP_CWORD={place}; _jaxdist; printf '%s|' \"${{COMPREPLY[@]}}\"; echo"
        for line, place in (
            ("jaxdist resum", 1),
            ("jaxdist resume ''", 2),
            ("jaxdist train digits optim.name = l", 5),
        )
    )
    script = (
        f'jaxdist() {{ "{sys.executable}" -m jaxdist.launch "$@"; }}; '
        f"source <(jaxdist completion bash); {ask}; complete -p jaxdist"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "resume |",
        "first |second |runs/|sub/|",
        "lars |lamb |",
        "complete -o nospace -F _jaxdist jaxdist",
    ]


def test_nothing_heavy_is_imported(folder):
    code = (
        "import sys; from jaxdist.launch.cli.main import main; "
        "main(['completion', 'words', '--shell', 'bash', '--', *sys.argv[1:]]); "
        "sys.exit(str({'jax', 'flax', 'numpy', 'rich'} & set(sys.modules)))"
    )
    for words in (["train", "digits", "op"], ["plan", "digits", "--cluster", ""]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": str(ROOT)},
        )
        assert done.stderr == "set()\n"
        assert done.stdout
