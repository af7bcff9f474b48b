"""A process of a real run whose source is slow is named, with its phase."""

import json
import sys

import pytest

pytestmark = [pytest.mark.laws, pytest.mark.timeout(300)]

SCRIPT = """
import os, sys, time
from jaxdist.input import registry

opened = registry.open_data

class Slow:
    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getattr__(self, name):
        return getattr(self.source, name)

    def get(self, ids):
        time.sleep(0.25 if os.environ["JAXDIST_RANK"] == "1" else 0)
        return self.source.get(ids)

registry.open_data = lambda *given: tuple(map(Slow, opened(*given)))

from jaxdist.launch.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_slow_source_is_named(job, tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(SCRIPT)
    words = f"digits run.dir={tmp_path} data.dir={job.data} model.width=4 epochs=0.9"
    how = "launch", "local", "-n", 2, "--devices-per-process", 1, "--"
    more = "run.straggler_interval=10"
    code, _, err = job.run(*how, sys.executable, script, "train", *words.split(), more)
    assert code == 0, err
    lines = [line for line in err.splitlines() if "slow: rank" in line]
    assert "slow: rank 1 (" in lines[-1]
    assert "behind in input, steps 11-20; a step takes " in lines[-1]
    rows = job.lines(tmp_path / "digits" / "slow.jsonl")
    assert (rows[-1]["rank"], rows[-1]["phase"]) == (1, "input")
    assert (
        json.loads((tmp_path / "digits" / "status.json").read_text())["state"] == "done"
    )
