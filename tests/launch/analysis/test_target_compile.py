"""Compiling for a target: sizes that must agree, and what real compilers answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxdist.launch.analysis.target_compile import KERNEL_AT_PEAK

TPU, GPU = "tpu-v5p:2x2x2", "h100:1x8"


def run(*words, cache, code=0, command="compile"):
    """Run a command in a process of its own, as a person does."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxdist.launch", command, *words],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(cache),
            "XLA_FLAGS": "",
            "JAX_ENABLE_COMPILATION_CACHE": "true",
        },
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits", "--target", "tpu-v5p:3x3x3"), "--target tpu-v5p:2x2x2"),
        (("digits", "--target", "v100:1x8"), "chips are tpu-v4"),
        (("digits",), "--target"),
    ],
)
def test_a_target_that_is_none_is_refused_before_anything_is_compiled(
    words, said, tmp_path
):
    done = run(*words, cache=tmp_path, code=2)
    assert said in done.stderr
    assert not list(tmp_path.rglob("*.json"))


@pytest.fixture(scope="module", params=[TPU, pytest.param(GPU, marks=pytest.mark.cuda)])
def answer(request, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    words = ("digits", "--target", request.param)
    done = run(*words, "--json", cache=cache)
    return request.param, words, cache, json.loads(done.stdout), done.stderr


@pytest.mark.target
@pytest.mark.timeout(600)
def test_the_answer_of_a_real_compiler(answer):
    target, _, _, found, stderr = answer
    assert stderr == ""  # the compilers' own noise is kept away
    assert found["fits"]
    assert not found["differences"]
    assert 10**6 < found["memory_bytes"] < found["capacity_bytes"]
    assert {row["kind"] for row in found["collectives"]} >= {
        "all-reduce",
        "collective-permute",
    }
    sent = sum(row["sent_bytes"] for row in found["collectives"])
    assert found["hidden_bytes"] + found["exposed_bytes"] == sent > 0
    if target == TPU:
        assert found["cycles"] == sum(row["cycles"] for row in found["layers"]) > 10**4
        assert found["step_s"] == found["compute_s"] + found["exposed_s"]
        assert found["host_copy_s"] == 0
        assert 0 < found["mfu"] < 1
        (halo,) = found["rewrites"]
        assert halo["planned"] == 2 * halo["program"]
    else:
        assert found["cycles"] is None
        assert not found["rewrites"]


@pytest.mark.target
@pytest.mark.timeout(600)
def test_an_answer_is_kept_by_program_and_compiler(answer):
    _, words, cache, found, _ = answer
    (path,) = Path(cache).rglob("targets/*.json")
    path.write_text(json.dumps(found | {"compile_s": 123.5}))
    again = json.loads(run(*words, "--json", cache=cache).stdout)
    assert again["compile_s"] == 123.5
    # A damaged answer is none.
    path.write_text('{"fits": 3}')
    assert json.loads(run(*words, "--json", cache=cache).stdout)["fits"] is True
    # Another program has an answer of its own.
    run(*words, "optim.name=adamw", "optim.lr=0.001", "--json", cache=cache)
    assert len(list(Path(cache).rglob("targets/*.json"))) == 2


@pytest.mark.target
@pytest.mark.timeout(900)
def test_a_step_that_is_larger_than_the_memory_does_not_fit(tmp_path):
    words = ("vgg16", "data.name=synthetic", "data.batch=4096", "plan.mesh.data=4")
    done = run(*words, "--target", "tpu-v5e:2x2", "--json", cache=tmp_path, code=1)
    found = json.loads(done.stdout)
    assert not found["fits"]
    assert found["memory_bytes"] > found["capacity_bytes"] > 15 * 2**30


@pytest.mark.target
@pytest.mark.timeout(900)
def test_a_kernel_of_which_the_compiler_has_no_estimate_counts_at_the_peak(tmp_path):
    sizes = ("model.depth=2", "model.embed=256", "model.heads=2", "model.kv_heads=2")
    words = ("gpt2_small", "data.name=synthetic", "data.batch=8", "model.vocabulary=64")
    words += ("data.context=1024", "model.context=1024", "precision=bfloat16", *sizes)
    words += (
        "plan.mesh.data=8",
        "plan.mesh.fsdp=1",
        "plan.logits=chunks",
        "--target",
        TPU,
        "--json",
    )
    found = json.loads(run(*words, cache=tmp_path).stdout)
    assert (found["attention"], found["has_logit_chunks"]) == ("splash", True)
    assert KERNEL_AT_PEAK in found["not_estimated"]
    spent = {row["layer"]: row["cycles"] for row in found["layers"]}
    # Nine products of 128 features over the half of 1,024 x 1,024 scores of two heads.
    products = 9 * 2 * 128 * 2 * 1024 * 1025 // 2
    for block in ("block0", "block1"):
        assert spent[block] >= products // (459e12 / 1.751e9)


@pytest.mark.target
@pytest.mark.timeout(600)
def test_a_page_and_the_report_of_a_run_show_the_answer(job, answer, tmp_path):
    target, words, cache, found, _ = answer
    page = tmp_path / "step.html"
    run(*words, "-o", str(page), cache=cache)
    assert f"Compiled for {target}" in page.read_text()
    assert (
        "is there already" in run(*words, "-o", str(page), cache=cache, code=2).stderr
    )

    where = f"run.dir={tmp_path}", f"data.dir={job.data}"
    code, _, err = job.run("train", "digits", "epochs=0.1", *where)
    assert code == 0, err
    folder = tmp_path / "digits"
    run(str(folder), "--target", target, cache=cache, command="report")
    kept = json.loads((folder / "compiled.json").read_text())
    assert (kept["target"], kept["collectives"]) == (target, found["collectives"])
    assert f"Compiled for {target}" in (folder / "report.html").read_text()
    assert json.loads((folder / "samples.json").read_text())["samples"] == 360
