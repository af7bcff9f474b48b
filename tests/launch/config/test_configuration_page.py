"""docs/configuration.md speaks of keys and commands that exist."""

import re
from pathlib import Path

import pytest

from jaxdist.launch.cli.main import main
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.experiment import load_experiment
from jaxdist.launch.config.resolve import SETTING_SOURCE_NAMES
from jaxdist.launch.config.tree import key_types

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()


def test_every_key_of_the_table_exists():
    table = PAGE.split("## Keys that scripts rely on")[1].split("##")[0]
    keys = re.findall(r"`([a-z_.]+)`", table)
    assert len(keys) > 8
    assert set(keys) <= set(key_types(Experiment))


def test_every_origin_is_explained():
    assert all(f"| `{origin}` |" in PAGE for origin in SETTING_SOURCE_NAMES)


def test_the_example_is_an_experiment(tmp_path):
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "my_experiment.py").write_text(code)
    config = load_experiment(str(tmp_path / "my_experiment.py"))
    assert (config.name, config.model.width) == ("wide", 32)


@pytest.mark.parametrize(
    "line", re.findall(r"^jaxdist (config .*?|experiments)\s+#", PAGE, re.M)
)
def test_the_commands_that_only_read_run(line, capsys):
    assert main(line.split()) == 0
    assert capsys.readouterr().out
