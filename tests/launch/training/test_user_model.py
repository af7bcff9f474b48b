"""docs/my.py, and networks like it: trained, found again, and refused in words."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.train.load import load

DOCS = Path(__file__).parents[3] / "docs"
PLAIN = """
from dataclasses import replace
from flax import nnx
from jaxdist.core.object_reference import object_reference
from my import Net, mine as chained

class Plain(nnx.Module):
    def __init__(self, *, rngs):
        self.net = Net(rngs=rngs)

    def __call__(self, x):
        return self.net(x)

def plain() -> "Experiment":
    first = chained()
    return replace(first, name="plain", model=replace(first.model, name=object_reference(Plain)))
"""


def test_the_page_shows_the_file():
    blocks = re.findall(
        r"```python\n(.*?)```", (DOCS / "your_model.md").read_text(), re.S
    )
    assert (DOCS / "my.py").read_text() in blocks


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    """The folder of the file, and what a run on data x spatial said."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(DOCS / "my.py", folder)
    words = [folder / "my.py", f"run.dir={folder}", "epochs=4"]
    code, out, err = job.run("train", *words)
    assert code == 0, err
    return folder, out


def summary(folder):
    return json.loads((folder / "mine" / "summary.json").read_text())


def test_it_trains_on_data_and_spatial(trained):
    folder, out = trained
    assert "data 2 x spatial_h 2 4 devices (cpu, fake)" in " ".join(out.split())
    assert "no chain()" not in out
    assert summary(folder)["accuracy"] > 0.95


def test_it_is_found_again(job, trained):
    folder, _ = trained
    code, out, err = job.call("eval", folder / "mine", "--json")
    assert code == 0, err
    assert json.loads(out)["correct"] == summary(folder)["correct"]
    network, _ = load(folder / "mine")
    assert network(np.zeros((3, 16, 16, 1), np.float32)).shape == (3, 2)


@pytest.mark.parametrize("of", ["lock", "another module", "a file of the run"])
def test_code_of_a_stranger_is_not_imported(job, trained, of, monkeypatch):
    """Neither what else the files of a run name, nor a file that came with it."""
    folder, _ = trained
    run, stranger = folder / f"run-{of}", folder / f"run-{of}" / "stranger.py"
    shutil.copytree(folder / "mine", run)
    mark = folder / f"imported-{of}"
    code = f"open({str(mark)!r}, 'w').close()\nfrom my import *\n"
    home = stranger
    if of == "another module":
        home = folder / f"{of.replace(' ', '_')}.py"
    home.write_text(code)
    name = home.stem if of == "another module" else home
    monkeypatch.syspath_prepend(folder)

    text = (run / "config.lock.json").read_text()
    lock = json.loads(text)
    for key, function in ("data.name", "shapes"), ("model.name", "Net"):
        lock["values"][key]["value"] = f"{name}:{function}"
    if of == "a file of the run":
        lock["experiment"] = str(home)
    (run / "config.lock.json").write_text(json.dumps(lock))

    status, out, err = job.call("eval", run, "--json")
    assert (status, out) == (2, "")
    assert "code that is not known" in err
    assert "--trust" in err
    assert not mark.exists()

    status, out, err = job.call("eval", run, "--json", "--trust")
    assert status == 0, err
    assert json.loads(out)["correct"] == summary(folder)["correct"]
    assert mark.exists()


def test_a_checkpoint_of_a_stranger_is_not_loaded(trained, tmp_path):
    folder, _ = trained
    # Without its lock file nothing says that the network is the experiment's.
    shutil.copytree(folder / "mine" / "checkpoints", tmp_path / "run" / "checkpoints")
    with pytest.raises(BadInput, match="code that is not known") as refused:
        load(tmp_path / "run")
    assert "load(run, trust=True)" in refused.value.remedy
    network, _ = load(tmp_path / "run", trust=True)
    assert network(np.zeros((3, 16, 16, 1), np.float32)).shape == (3, 2)


def test_it_goes_on(job, trained):
    folder, _ = trained
    words = [folder / "my.py", f"run.dir={folder}", "epochs=5", "--change", "--json"]
    code, out, err = job.call("train", *words)
    assert code == 0, err
    assert (json.loads(out)["resumed_at"], json.loads(out)["steps"]) == (64, 80)


def test_a_file_that_moved_is_named(job, trained):
    folder, _ = trained
    (folder / "my.py").rename(folder / "other.py")
    try:
        code, out, err = job.call("eval", folder / "mine")
        with pytest.raises(BadInput, match="no file"):
            load(folder / "mine")
    finally:
        (folder / "other.py").rename(folder / "my.py")
    assert (code, out) == (2, "")
    assert f"no file {folder / 'my.py'}" in err


def test_a_network_that_is_no_chain_is_told_what_it_misses(job, trained):
    folder, _ = trained
    (folder / "plain.py").write_text(PLAIN)
    words = [folder / "plain.py", f"run.dir={folder}", "epochs=0.1"]
    words += ["plan.mesh.fsdp=2", "plan.mesh.spatial_h=1"]
    code, out, err = job.run("train", *words, PYTHONPATH=f"{folder}")
    assert code == 0, err
    assert "has no chain() of named blocks" in " ".join(out.split())
    assert "data 2 x fsdp 2" in out


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (
            ('"label": ring', '"name": ring'),
            [],
            "my.py:shapes has image, name, no label",
        ),
        (("(1, 8), rngs", "(1, 8), rng"), [], "'rng' is not defined"),
        (("def mine() -> Experiment", "def mine()"), [], "has no experiment"),
        (("epochs=4", "epochs=1 // 0"), [], "mine() of"),
        (("return tuple(", "return list("), [], "it returned list of 2"),
        (("", ""), ["precision=bfloat16"], "has one dtype"),
        (("", ""), ["plan.mesh.spatial_h=16"], "plan.mesh.spatial_h="),
        (("", ""), ["data.name=synthetic"], "synthetic data has no shape"),
    ],
)
def test_mistakes_are_bad_input(job, tmp_path, change, words, said):
    text = (DOCS / "my.py").read_text()
    assert change[0] in text
    (tmp_path / "my.py").write_text(text.replace(*change) if change[0] else text)
    runs = tmp_path / "runs"
    code, out, err = job.call("train", tmp_path / "my.py", f"run.dir={runs}", *words)
    assert (code, out) == (2, ""), err
    assert said in err
    assert "Traceback" not in err
    assert not runs.exists()


@pytest.mark.parametrize(
    ("first", "early", "devices"),
    [("", True, 4), ("import jax", True, 4), ("import jax; jax.devices()", False, 1)],
)
def test_devices_are_made_also_where_a_file_imported_jax(job, first, early, devices):
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n{first}\n"
        "from jaxdist.launch.devices.jax_environment import set_jax_variables\n"
        "names = {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '4'}\n"
        "early = set_jax_variables(names | {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'})\n"
        "import jax\nprint(early, jax.device_count())"
    )
    out, err = job.python("-c", script).communicate()
    assert out.split() == [str(early), str(devices)], err


def test_a_layer_that_sees_its_own_block_alone_is_refused(job, tmp_path):
    text = (DOCS / "my.py").read_text()
    plain = text.replace(
        "Conv(*features, (3, 3), rngs=rngs)", "nnx.Conv(*features, (3, 3), rngs=rngs)"
    )
    assert plain != text
    (tmp_path / "my.py").write_text(plain)
    words = [tmp_path / "my.py", f"run.dir={tmp_path / 'runs'}"]
    code, out, err = job.call("train", *words)
    assert (code, out) == (2, ""), err
    assert "conv_general_dilated" in err
    assert "plan.mesh.spatial_h=1" in err
    code, _, err = job.call("train", *words, "plan.mesh.spatial_h=1", "epochs=0.1")
    assert code == 0, err
