"""The port of a training loop: few lines differ, and the losses are those of one device."""

import difflib
import re
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BEFORE, AFTER = EXAMPLES / "port_before.py", EXAMPLES / "port_after.py"


def losses(text):
    """Losses by step, of the first process where there are several."""
    rows = re.findall(r"^(?:r00 │ )?step +(\d+)  loss (\S+)", text, re.M)
    return {int(step): float(loss) for step, loss in rows}


@pytest.fixture(scope="module")
def before(job):
    child = job.python(BEFORE)
    out, err = child.communicate()
    assert child.returncode == 0, err
    found = losses(out)
    assert list(found) == [*range(1, 65)]
    return found


def ported(job, folder, processes, text=None):
    """Run the ported loop in a folder, and return its losses by step."""
    folder.mkdir(exist_ok=True)
    program = folder / "port.py"
    program.write_text(text or AFTER.read_text())
    words = "local", "-n", processes, "--devices-per-process", 1, "--"
    inside = f"import os, runpy; os.chdir({str(folder)!r}); runpy.run_path('port.py')"
    code, out, err = job.run("launch", *words, sys.executable, "-c", inside)
    assert code == 0, err
    return losses(out)


def test_at_most_six_lines_change():
    old, new = (
        [line for line in path.read_text().splitlines() if line.strip()]
        for path in (BEFORE, AFTER)
    )
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed = [max(b - a, d - c) for kind, a, b, c, d in changes if kind != "equal"]
    assert 0 < sum(changed) <= 6


@pytest.mark.parametrize("processes", [1, 2])
def test_losses_are_those_of_one_device(job, before, tmp_path, processes):
    found = ported(job, tmp_path, processes)
    assert list(found) == list(before)
    assert max(abs(found[step] - before[step]) for step in before) <= 1e-6


def test_a_loop_that_stopped_goes_on_on_another_number_of_processes(
    job, before, tmp_path
):
    text = AFTER.read_text().replace("steps=64", "steps=64, interval=8")
    # It ends in the middle, with an error of its own behind step 20.
    breaks = text + "    assert number < 20\n"
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "port.py").write_text(breaks)
    child = job.python(
        "-c", f"import os; os.chdir({str(folder)!r}); exec(open('port.py').read())"
    )
    out, err = child.communicate()
    assert child.returncode
    assert "AssertionError" in err
    assert list(losses(out)) == [*range(1, 22)]
    found = ported(job, folder, 2, text)
    assert list(found) == [*range(17, 65)]
    assert max(abs(found[step] - before[step]) for step in found) <= 1e-6
