"""Weights in and out: imported into a layout, trained from, and exported bit for bit."""

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxdist.core.safetensors_file import read_header
from jaxdist.launch.cli.main import main
from jaxdist.train.load import load

DATA = Path(__file__).parents[2] / "models" / "data" / "hf"
TEXT = "to be or not to be, that is the question: " * 40


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path


def call(capsys, *words):
    # Optax mixes numbers of Python and of jax, in rates.
    with jax.numpy_dtype_promotion("standard"):
        code = main([str(word) for word in words])
    return code, capsys.readouterr()


def answer(capsys, *words):
    """The JSON of a command that ends well."""
    code, printed = call(capsys, *words, "--json")
    assert code == 0, printed.err
    return json.loads(printed.out)


def tensors_of(folder):
    """Dtype, shape and bytes of all tensors in a folder."""
    return {
        name: (one.dtype, one.shape, one.read().tobytes())
        for path in folder.glob("model*.safetensors")
        for name, one in read_header(path).items()
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mistral", ["plan.mesh.fsdp=8"]),
        ("gpt2", ["plan.mesh.tensor=2"]),
        ("mixtral", ["plan.mesh.fsdp=2", "plan.mesh.expert=4"]),
    ],
)
def test_an_export_of_an_import_has_the_same_bytes(place, capsys, name, words):
    source = place / name
    shutil.copytree(DATA / name, source)
    (source / "tokenizer.json").write_text("{}")
    made = answer(capsys, "import", "hf", source, *words)
    assert made["files"] == ["tokenizer.json"]
    assert (place / "runs" / name / "tokenizer.json").read_text() == "{}"
    out = answer(capsys, "export", "hf", name, "out", "--max-file", "8kB")
    assert "model.safetensors.index.json" in out["files"]
    assert "tokenizer.json" in out["files"]
    assert tensors_of(place / "out") == tensors_of(source)
    config = (
        json.loads((f / "config.json").read_text()) for f in (source, place / "out")
    )
    assert len({json.dumps(tree, sort_keys=True) for tree in config}) == 1
    # What is written is read, shards and all.
    again = answer(capsys, "import", "hf", "out", "--name", "again")
    assert again["parameters"] == made["parameters"]
    hashes = {
        answer(capsys, "ckpt", "hash", run)["params_sha256"] for run in (name, "again")
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("from_run", "mesh"),
    [
        (False, "plan.mesh.fsdp=2"),
        pytest.param(True, "plan.mesh.pipe=2", marks=pytest.mark.slow),
    ],
)
def test_a_run_starts_from_weights(place, capsys, from_run, mesh):
    """From a folder or from a run, in any layout; at rate 0 nothing moves."""
    source = DATA / "qwen2"
    answer(capsys, "import", "hf", source)
    before = answer(capsys, "ckpt", "hash", "qwen2")["params_sha256"]
    weights = "qwen2" if from_run else source
    words = [*("llama", f"weights={weights}", "run.name=tuned", "data.path=a.txt")]
    words += ["optim.lr=0", "plan.mesh.data=1", mesh, "data.batch=4", "epochs=0.1"]
    answer(capsys, "train", *words)
    found = answer(capsys, "ckpt", "hash", "tuned")
    assert found["params_sha256"] == before
    answer(capsys, "export", "hf", "tuned", "out")
    assert tensors_of(place / "out") == tensors_of(source)
    if from_run:
        # It goes on with what it has: the weights may be gone.
        shutil.move("runs/qwen2", "elsewhere")
        more = answer(capsys, "resume", "tuned", "epochs=0.2", "--change")
        assert more["steps"] > 1


def test_adapters_are_trained_and_merged(place, capsys):
    """From imported weights, over fsdp; the export is a network without adapters."""
    base = answer(capsys, "import", "hf", DATA / "qwen2")
    words = ["llama", "run.name=tuned", "data.path=a.txt", "data.batch=4"]
    words += ["plan.mesh.data=1", "plan.mesh.fsdp=2", "optim.lr=0.01", "epochs=0.2"]
    words += ["lora.rank=2", "lora.targets=query,value,down"]
    answer(capsys, "train", *words, "weights=qwen2")
    summary = json.loads(Path("runs/tuned/summary.json").read_text())
    assert summary["frozen_parameters"] == base["parameters"]
    assert 0 < summary["parameters"] < 0.2 * base["parameters"]
    # Another rank would be another network.
    code, printed = call(capsys, "resume", "tuned", "lora.rank=4", "--change")
    assert (code, "lora.rank 2, now 4" in printed.err) == (2, True)
    answer(capsys, "export", "hf", "tuned", "out", "--dtype", "float32")
    answer(capsys, "import", "hf", "out", "--name", "merged")
    tokens = np.arange(24, dtype=np.int32).reshape(2, 12) % 48
    logits, whole = (load(name)[0](tokens) for name in ("tuned", "merged"))
    np.testing.assert_allclose(logits, whole, rtol=1e-5, atol=1e-5)
    assert np.abs(whole - load("qwen2")[0](tokens)).max() > 1e-3
    # A run that starts from one with adapters has them, or is told.
    words[1] = "run.name=again"
    code, printed = call(capsys, "train", *words, "weights=tuned", "lora.rank=0")
    assert (code, "lora.rank is 1 or more" in printed.err) == (2, True)
    alone = [word for word in words if not word.startswith("lora.")]
    code, printed = call(capsys, "train", *alone, "weights=tuned", "lora.rank=0")
    assert (code, "weights=tuned-merged" in printed.err) == (2, True)
    code, printed = call(capsys, "train", *alone, "weights=tunde")
    assert (code, "weights=tuned" in printed.err) == (2, True)
    code, printed = call(capsys, "train", *words, "weights=tuned", "lora.rank=4")
    assert (code, "adapters of rank 2" in printed.err) == (2, True)


def test_imported_weights_are_no_run_to_go_on_with(place, capsys):
    answer(capsys, "import", "hf", DATA / "qwen2")
    code, printed = call(capsys, "resume", "qwen2", "data.path=a.txt", "--change")
    assert code == 2
    assert "jaxdist train llama weights=qwen2" in printed.err


# All bytes, or some: what cannot be decoded, and what is another number.
@pytest.mark.parametrize("stride", [1, 512])
def test_a_damaged_checkpoint_is_no_start(place, capsys, stride):
    answer(capsys, "import", "hf", DATA / "qwen2")
    # Smaller ones are of the index. Of a single file it is not known whether anything
    # reads it.
    for path in Path("runs/qwen2/checkpoints/0/state").rglob("*_0/d/*"):
        held = bytearray(path.read_bytes())
        if len(held) > 5000:
            held[::stride] = bytes(byte ^ 0xFF for byte in held[::stride])
            path.write_bytes(held)
    words = ["llama", "weights=qwen2", "run.name=tuned", "data.path=a.txt"]
    more = ["plan.mesh.data=1", "data.batch=4", "epochs=0.1"]
    code, printed = call(capsys, "train", *words, *more)
    assert code == 2
    assert "checkpoints/0 is damaged" in printed.err
    assert "jaxdist ckpt verify" in printed.err


def nonfinite(folder):
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["model.norm.weight"][3] = np.nan
    safetensors.numpy.save_file(tensors, path)


def cut_off(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "words", "said"),
    [
        (nonfinite, [], "not finite(.|\n)*model.norm.weight"),
        (cut_off, [], "cut off at"),
        (None, ["model.vocabulary=50"], "model.vocabulary = 50, 48 in config.json"),
        (None, ["run.name=taken"], "is there already"),
    ],
)
def test_nothing_is_imported_by_half(place, capsys, damage, words, said):
    (place / "runs" / "taken").mkdir(parents=True)
    source = Path(shutil.copytree(DATA / "llama3", place / "llama3"))
    if damage is not None:
        damage(source)
    code, printed = call(capsys, "import", "hf", source, *words)
    assert code == 2
    assert re.search(said, printed.err)
    assert "remedy" in printed.err
    assert [path.name for path in Path("runs").iterdir()] == ["taken"]


def test_a_narrower_export_rounds_and_says_what_does_not_fit(place, capsys):
    answer(capsys, "import", "hf", DATA / "llama3")
    answer(capsys, "export", "hf", "llama3", "out", "--dtype", "bfloat16")
    narrow, wide = (
        read_header(folder / "model.safetensors")
        for folder in (place / "out", DATA / "llama3")
    )
    for name, one in narrow.items():
        assert one.dtype == "BF16"
        expected = wide[name].read().astype(one.read().dtype)
        np.testing.assert_array_equal(one.read(), expected)
    assert (
        json.loads((place / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    )
    # A folder that is there stays as it is.
    code, printed = call(capsys, "export", "hf", "llama3", "out")
    assert code == 2
    assert "out is there already" in printed.err


def test_a_plan_is_made_from_a_configuration_alone(place, capsys):
    tree = json.loads((DATA / "llama3" / "config.json").read_text())
    Path("config.json").write_text(json.dumps(tree))
    words = ["--hf", "config.json", "data.context=24", "data.batch=8"]
    found = answer(capsys, "plan", *words, "--cluster", "abci", "--devices", "4")
    assert found["plans"]
    # The file says which network it is; it may be named all the same.
    own, named = (call(capsys, "config", *name, *words) for name in ([], ["llama"]))
    assert own[0] == named[0] == 0
    assert own[1].out == named[1].out
    code, printed = call(
        capsys, "config", "llama", "--hf", "config.json", "model.depth=3"
    )
    assert code == 0
    assert re.search(r"model.depth +3", printed.out)
    assert re.search(r"model.vocabulary +48", printed.out)


@pytest.mark.slow
def test_processes_import_together(job, tmp_path):
    """Each reads and writes its part; one that meets a bad number ends all."""
    source = Path(shutil.copytree(DATA / "llama3", tmp_path / "llama3"))
    (source / "tokenizer.json").write_text("{}")
    where = ["--dir", tmp_path / "runs", "plan.mesh.fsdp=2"]
    words = ["launch", "local", "-n", "2", "--devices-per-process", "1", "--"]
    words += ["import", "hf", source, *where]
    code, _, err = job.call(*map(str, words))
    assert code == 0, err
    code, out, err = job.call("ckpt", "hash", str(tmp_path / "runs" / "llama3"))
    alone = ["import", "hf", source, "--name", "alone", "--dir", tmp_path / "runs"]
    assert job.call(*map(str, alone))[0] == 0
    assert job.call("ckpt", "hash", str(tmp_path / "runs" / "alone"))[1] == out
    nonfinite(source)
    code, out, err = job.call(*map(str, [*words, "--name", "bad"]))
    assert code == 2
    assert "not finite" in out + err
    assert sorted(path.name for path in (tmp_path / "runs").glob("*")) == [
        "alone",
        "llama3",
    ]
