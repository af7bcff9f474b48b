"""Settings of an experiment as options, under short names, and from a file."""

import json
from argparse import Namespace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main, make_parser
from jaxdist.launch.cli.option_aliases import option_overrides, read_words
from jaxdist.launch.cli.restart_options import feasible_counts_of_program
from jaxdist.launch.config.aliases import SHORT_KEYS
from jaxdist.launch.config.config_file import read_config_file
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.config.tree import key_types
from jaxdist.launch.launchers.elastic.process_range import ProcessRange


def overrides(*words, command="train"):
    return option_overrides(make_parser(command), ["digits", *words])[0][1:]


@pytest.mark.parametrize("short", SHORT_KEYS)
def test_a_short_name_is_a_key(short):
    assert SHORT_KEYS[short] in key_types(Experiment)
    key = SHORT_KEYS[short]
    words = [f"{key}=x"]
    assert overrides(f"{short}=x") == words
    assert overrides(f"--{short.replace('_', '-')}", "x") == words
    assert overrides(f"--{short}=x") == words


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("--epochs", "2", "--json"), ["epochs=2", "--json"]),
        (("--seed=1",), ["seed=1"]),
        (("--optim.lr", "1e-3"), ["optim.lr=1e-3"]),
        (("--data.store", "none"), ["data.store=none"]),
        (("--optim.momentum", "-0.5"), ["optim.momentum=-0.5"]),
        (("--model.aux", "--json"), ["model.aux=True", "--json"]),
        (("--model.aux", "false"), ["model.aux=false"]),
        (("--run.name", "a b"), ["run.name=a b"]),
        (("--plan", "plan.json", "--dry-run"), ["--plan", "plan.json", "--dry-run"]),
        (("--max-steps", "5"), ["max_steps=5"]),
    ],
)
def test_options_are_overrides(words, made):
    assert overrides(*words) == made


def test_options_of_a_command_stay_its_own():
    words = ("--batch", "32,64", "--processes", "1", "--seed", "2")
    assert overrides(*words, command="scale") == [*words[:4], "seed=2"]
    parser = make_parser("generate")
    words = ["characters", "--prompt", "A", "--seed", "2"]
    assert option_overrides(parser, words) == (words, {})
    words = ["local", "-n", "2", "--", "train", "digits", "--lr", "0.1"]
    assert option_overrides(make_parser("launch"), words) == (words, {})
    words = ["stages", "--epochs", "2"]
    assert option_overrides(make_parser("plan"), words) == (words, {})
    assert read_words(make_parser("profile"), ["digits", "batch=8"]).args.overrides == [
        "batch=8"
    ]


def test_which_key_it_was_is_said_once(capsys, monkeypatch):
    words = [
        "config",
        "digits",
        "--lr",
        "0.1",
        "bs=32",
        "--epochs=2",
        "data.store=none",
    ]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    values = json.loads(said.out)["values"]
    assert values["optim.lr"] == {"value": 0.1, "by": "command line"}
    assert values["data.batch"]["value"] == 32
    assert said.err == (
        "keys:     --lr is optim.lr, bs is data.batch, --epochs is epochs\n"
        "renamed: data.store is now data.cache\n"
    )
    monkeypatch.setenv("JAXDIST_RANK", "1")
    assert main(["config", "digits", "--lr", "0.1"]) == 0
    assert capsys.readouterr().err == ""


def test_short_names_work_from_python_too():
    config = resolve_config("digits", ["lr=0.3", "batch_size=32"]).config
    assert (config.optim.lr, config.data.batch) == (0.3, 32)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epochs",), "--epochs has no value"),
        (("--epochs", "--json"), "remedy   --epochs VALUE"),
        (("--epoch", "2"), "did you mean --epochs?"),
        (("--dropout", "0.1"), "did you mean --model.dropout?"),
        (("--jsn",), "did you mean --json?"),
        (("--model", "resnet8"), "remedy   model.name=resnet8"),
        (("--lr", "fast"), "optim.lr cannot be fast"),
        (("max_steps=500",), "epochs = steps x data.batch / samples"),
        (("--max-steps", "500"), "values   max_steps=500, data.batch = 64"),
        (("max_steps=500", "batch_size=8"), "max_steps=500, data.batch = 8"),
    ],
)
def test_what_is_no_setting_is_refused(capsys, words, said):
    assert main(["config", "digits", *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "max" not in shown.partition("error:")[0]


YAML = """\
epochs: 2            # a comment
optim:
  lr: 1e-3
  milestones: [30, 60]
plan.scan: on
data: {eval_batch: ~}
bs: 32
"""
TOML = """\
epochs = 2
plan.scan = "on"
bs = 32
data.eval_batch = "None"

[optim]
lr = 1e-3
milestones = [30, 60]
"""


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.toml", TOML)])
def test_a_file_has_the_values_of_overrides(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert sorted(read_config_file(path, experiment="digits")) == [
        *("data.batch=32", "data.eval_batch=None", "epochs=2", "optim.lr=1e-3"),
        *("optim.milestones=30,60", "plan.scan=on"),
    ]


def test_what_is_typed_beside_a_file_wins(tmp_path, capsys):
    path = tmp_path / "a.yaml"
    path.write_text(YAML)
    words = ["config", "digits", "--config", str(path), "--epochs", "3", "--json"]
    assert main(words) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert values["epochs"]["value"] == 3
    assert values["optim.lr"] == {"value": 1e-3, "by": "command line"}


def test_a_launcher_reads_the_file_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.toml"
    path.write_text("plan.mesh.spatial_h = 1\nplan.mesh.data = 2")
    program = ("train", "digits", "--config", str(path), "--batch-size", "62")
    span = ProcessRange(min_processes=1, max_processes=2)
    assert feasible_counts_of_program(program, span).counts == (1, 2)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.yaml",
            "optim:\n  l: 1",
            ("no key optim.l\n", "a.yaml:2", "mean optim.lr?"),
        ),
        (
            "a.toml",
            "\n[optim]\nl = 1",
            ("no key optim.l\n", "a.toml:3", "mean optim.lr?"),
        ),
        (
            "a.yaml",
            "epochs: many\nsed: 1",
            ("epochs cannot be many", "a.yaml:1", "seed"),
        ),
        ("a.yaml", "epochs: 1\nnum_epochs: 2", ("epochs is there twice", "a.yaml:2")),
        ("a.yaml", "max_steps: 2", ("no key max_steps", "a.yaml:1")),
        ("a.yaml", "- 1", ("cannot be read", "no table")),
        ("a.yaml", "epochs: {a: 1}", ("no key epochs.a",)),
        ("a.yaml", "epochs: [[1]]", ("cannot be read", "epochs is one value")),
        ("a.toml", "epochs", ("cannot be read", "after a key")),
        ("a.txt", "epochs: 1", ("no configuration file", "a.yaml")),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(
    tmp_path, name, text, said
):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_config_file(path, experiment="digits")
    assert all(part in str(caught.value) for part in said), str(caught.value)


def test_no_file_is_refused(tmp_path, capsys):
    (tmp_path / "mine.yaml").touch()
    assert main(["config", "digits", "--config", str(tmp_path / "mne.yaml")]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert read_config_file(tmp_path / "mine.yaml", experiment="digits") == []


def test_the_words_of_a_run_are_kept_under_current_names(tmp_path):
    line = read_words(
        make_parser("train"), ["digits", "--lr", "0.1", "data.store=none"]
    )
    assert line.words == ("digits", "optim.lr=0.1", "data.cache=none")
    assert isinstance(line.args, Namespace)
