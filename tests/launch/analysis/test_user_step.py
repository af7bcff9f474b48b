"""`jaxdist audit my_script.py:step`: a step of the user's own, and wrong scripts."""

import json

import pytest

from jaxdist.launch.cli.main import main

SCRIPT = """
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

devices = jax.devices()[:8]
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def convolve(kernel, images):
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=GROUPS,
    )


step = jax.jit(convolve)


def array(*shape, split=()):
    where = NamedSharding(mesh, PartitionSpec(*split))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)
"""
ARGS = "args = array(3, 3, 16 // GROUPS, 16), array(8, 9, 9, 16, split=('data',))\n"


@pytest.fixture
def answer(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(text, *words, groups=2):
        (tmp_path / "mine.py").write_text(text.replace("GROUPS", str(groups)))
        code = main(["audit", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_gather_is_found_at_its_line(answer):
    code, out, err = answer(SCRIPT + ARGS, "mine.py:step")
    assert (code, err) == (1, "")
    line = SCRIPT.splitlines().index("    return jax.lax.conv_general_dilated(") + 1
    assert out.startswith("mine.py:step\n  mesh     data 8\n")
    row = next(line.split() for line in out.splitlines() if "all-gather  " in line)
    assert (row[:3], row[-1]) == (["all-gather", "data", "1"], f"mine.py:{line}")
    assert "found: unplanned all-gather over data" in out
    assert "found: replicated compute: 8 devices together do" in out


def test_warnings_are_no_failure_where_that_is_asked(answer):
    code, out, _ = answer(SCRIPT + ARGS, "mine.py:step", "--warn")
    assert code == 0
    assert "found: unplanned" in out


def test_a_step_without_findings_passes(answer):
    code, out, err = answer(SCRIPT + ARGS, "mine.py:step", "--json", groups=1)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["findings"], found["unplanned_all_gathers"]) == ([], 0)
    assert found["mesh"] == {"data": 8}
    assert found["repeats"] == pytest.approx(1, rel=0.05)


def test_arguments_may_be_made_when_they_are_needed(answer):
    late = "def args():\n    return " + ARGS.removeprefix("args = ")
    code, _, err = answer(SCRIPT + late, "mine.py:step", groups=1)
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", ["none.py:step"], "no file none.py\n"),
        ("1 / 0", ["mine.py:step"], "mine.py cannot be loaded\n"),
        (
            SCRIPT + ARGS,
            ["mine.py:stp"],
            "no stp in mine.py\n  remedy   did you mean mine.py:step?",
        ),
        (SCRIPT, ["mine.py:step"], "mine.py does not say what step is called on\n"),
        (SCRIPT + "args = 3", ["mine.py:step"], "args of mine.py is no tuple\n"),
        (SCRIPT + ARGS, ["mine.py:convolve"], "convolve is not jitted\n"),
        (
            SCRIPT + "args = (array(8),)",
            ["mine.py:step"],
            "the step cannot be called on these arguments\n",
        ),
        (SCRIPT + ARGS, ["mine.py:step", "a=1"], "a script has no keys\n"),
    ],
)
def test_wrong_scripts_are_answered(answer, text, words, said):
    code, out, err = answer(text, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")


def test_an_experiment_in_a_file_is_still_an_experiment(answer):
    text = """
from jaxdist.launch.config import Experiment


def mine() -> Experiment:
    return Experiment(name="mine")
"""
    code, _, err = answer(text, "mine.py:mine", "data.batch=-1")
    assert code == 2
    assert "data.batch" in err
