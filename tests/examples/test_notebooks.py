"""The notebooks run from their first cell to their last, and are kept without outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").iterdir())


def cells(path, kind):
    """The texts of a notebook's cells of a kind."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == kind]


def test_there_are_three():
    names = ["plan_a_cluster.ipynb", "port_your_loop.ipynb", "train_digits.ipynb"]
    assert [path.name for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert cells(path, "markdown")[0].startswith("# ")
    for text in cells(path, "markdown"):
        assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.timeout(300)  # 20 s of a machine that does nothing else
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(job, path, tmp_path):
    # As one program: its classes are those of `__main__`, as they are in a kernel.
    program = tmp_path / "notebook.py"
    inside = f"import os\nos.chdir({str(tmp_path)!r})\n"
    program.write_text(inside + "\n\n".join(cells(path, "code")))
    child = job.python(program)
    out, err = child.communicate()
    assert child.returncode == 0, f"{out}\n{err}"
    assert out
