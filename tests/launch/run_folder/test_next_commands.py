"""Commands that a run suggests can be typed as they stand."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxdist.core.run_record import Run
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import ConfigLock, lock_to_json
from jaxdist.launch.run_folder.next_commands import (
    cli_resume_command,
    resume_command,
    suggest_commands,
)

DONE = Run(name="r", experiment="digits", status="done", steps=4)
STOPPED = replace(DONE, status="stopped")


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def lock(name="r", command=("jaxdist", "train", "digits"), **values):
        words = [f"{key.replace('_', '.')}={value}" for key, value in values.items()]
        resolved = resolve_config("digits", words)
        folder = RunFolder(Path("runs", name))
        folder.path.mkdir(parents=True)
        text = lock_to_json(ConfigLock(resolved=resolved, packages={}, command=command))
        folder.config_lock.write_text(text)
        return folder

    return lock


def test_a_run_is_named_as_short_as_it_is_found(write):
    folder = write("my run")
    assert suggest_commands(DONE, folder) == [
        "jaxdist eval 'my run'",
        "jaxdist ckpt verify 'my run'",
        "jaxdist trace 'my run' -o trace.json",
    ]
    far = RunFolder(folder.path.resolve())
    assert suggest_commands(STOPPED, far) == [f"jaxdist resume '{far.path}'"]


def test_who_trained_on_text_is_told_how_to_continue_one(write):
    folder = write(data_name="text", model_name="gpt2_small")
    first, second, *_ = suggest_commands(DONE, folder)
    assert first == 'jaxdist generate r --prompt "The"'
    assert second == "jaxdist eval r"


def test_code_that_the_run_alone_names_is_trusted_by_an_option(write, tmp_path):
    (tmp_path / "net.py").write_text("def net(*, rngs):\n    return None\n")
    folder = write(model_name=f"{tmp_path}/net.py:net")
    assert suggest_commands(DONE, folder)[0] == "jaxdist eval r --trust"
    assert suggest_commands(STOPPED, folder) == ["jaxdist resume r --trust"]


def test_a_program_resumes_what_it_began(write):
    folder = write(command=("python", "own.py", "--width", "a b"))
    assert suggest_commands(STOPPED, folder) == ["python own.py --width 'a b'"]
    assert resume_command(folder) == "python own.py --width 'a b'"
    assert cli_resume_command(folder) == "jaxdist resume r"


def test_what_was_typed_into_a_notebook_is_evaluated_by_no_command(write):
    folder = write(command=("jaxdist.run",), model_name="__main__:Net")
    assert suggest_commands(STOPPED, folder) == ["jaxdist.run"]
    assert suggest_commands(DONE, folder)[0] == "jaxdist ckpt verify r"


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_damaged_lock_leaves_the_usual_commands(write, text):
    folder = write()
    folder.config_lock.write_text(text)
    assert suggest_commands(DONE, folder)[-1] == "jaxdist trace r -o trace.json"
    assert resume_command(folder) == "jaxdist resume r"
