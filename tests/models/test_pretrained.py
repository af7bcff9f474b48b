"""Weights of Hugging Face: logits of transformers, slices, names, and refusals.

What is compared with was written by `benchmarks/hf_networks.py`.
"""

import json
import math
import shutil
import struct
from dataclasses import fields, replace
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.core.errors import BadInput
from jaxdist.core.safetensors_file import TensorWriter, read_header
from jaxdist.models.config import ModelConfig
from jaxdist.models.pretrained.config_json import (
    check_typed_settings,
    config_json,
    model_settings,
    read_config_json,
)
from jaxdist.models.pretrained.folder import PretrainedFolder
from jaxdist.models.registry import fill_sizes, model_factory
from jaxdist.models.rope_scaling import RopeScaling
from jaxdist.train.state import named_leaves, replace_leaves

DATA = Path(__file__).parent / "data" / "hf"
NAMES = ("gpt2", "llama3", "mistral", "qwen2", "mixtral")
LLAMA = read_config_json(DATA / "llama3")


def abstract(config, shardings=lambda leaf: None):
    """Shapes of the parameters of a network, and the same by name."""
    network = nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))
    # How a mixture's tokens were routed is no weight.
    state = nnx.state(network, nnx.Param)
    leaves = {
        name: jax.ShapeDtypeStruct(x.shape, "float32", sharding=shardings(x))
        for name, x in named_leaves(state).items()
    }
    return state, leaves


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name):
    folder = PretrainedFolder.open(DATA / name)
    config = ModelConfig(**model_settings(folder.config))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state, leaves = abstract(config, lambda leaf: place)
    found = folder.check(config.name, leaves)
    arrays = {leaf: folder.read(found[leaf], x) for leaf, x in leaves.items()}
    expected = read_header(DATA / name / "expected.safetensors")

    @jax.jit
    def logits(state, tokens):
        network = model_factory(config)(rngs=nnx.Rngs(0))
        nnx.update(network, state)
        network.eval()
        return network(tokens)

    said = logits(replace_leaves(state, arrays), expected["tokens"].read())
    np.testing.assert_allclose(said, expected["logits"].read(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama3", "mixtral"])
def test_a_device_reads_its_slice_alone(name):
    """Rows or columns of a tensor, which may be transposed or a part of one; experts."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), (jax.sharding.AxisType.Auto,) * 2)

    def cut(leaf):
        axes = ["a", "b"] if leaf.ndim == 2 else ["a"]
        return NamedSharding(mesh, P(*axes))

    folder = PretrainedFolder.open(DATA / name)
    config = ModelConfig(**model_settings(folder.config))
    *_, leaves = abstract(config, cut)
    whole = NamedSharding(mesh, P())
    found = folder.check(config.name, leaves)
    for leaf, target in leaves.items():
        cuts = folder.read(found[leaf], target)
        uncut = jax.ShapeDtypeStruct(target.shape, target.dtype, sharding=whole)
        np.testing.assert_array_equal(cuts, folder.read(found[leaf], uncut))
        parts = 4 if cuts.ndim == 2 else 2
        assert {x.data.size for x in cuts.addressable_shards} == {cuts.size // parts}


def test_files_are_those_of_the_format(tmp_path):
    """What the format's own package reads and writes, in all dtypes and slices."""
    rng = np.random.default_rng(0)
    arrays = {
        "wide": rng.normal(size=(5, 6)),
        "plain": rng.normal(size=(7, 4, 3)).astype("f4"),
        "half": rng.normal(size=(4,)).astype("f2"),
        "brain": rng.normal(size=(3, 8)).astype(ml_dtypes.bfloat16),
        "count": np.arange(6, dtype="i4").reshape(2, 3),
        "none": np.zeros((0, 3), "f4"),
        "one": np.full((), 2.5, "f4"),
    }
    codes = dict(zip(arrays, ("F64", "F32", "F16", "BF16", "I32", "F32", "F32")))
    path = tmp_path / "ours.safetensors"
    writer = TensorWriter(path, {k: (codes[k], x.shape) for k, x in arrays.items()})
    for name, array in arrays.items():
        if array.ndim == 2:  # in two parts, as queries, keys and values are
            half = array.shape[1] // 2
            writer.write(name, array[:, half:], half)
            writer.write(name, array[:, :half])
        else:
            writer.write(name, array)
    theirs = safetensors.numpy.load_file(path)
    assert theirs.keys() == arrays.keys()
    for name, array in arrays.items():
        assert theirs[name].tobytes() == array.tobytes()

    safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors")
    ours = read_header(tmp_path / "theirs.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(ours[name].read(), array)
    index = (slice(2, 5), slice(1, None), slice(0, 2))
    np.testing.assert_array_equal(ours["plain"].read(index), arrays["plain"][index])


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_goes_there_and_back(name):
    tree = read_config_json(DATA / name)
    config = ModelConfig(**model_settings(tree))
    assert config_json(config, tree, str(tree["dtype"])) == tree
    made = config_json(config, None, "float32")
    assert ModelConfig(**model_settings(made)) == config
    # A network that was changed says so.
    longer = replace(config, rope_scaling="linear", rope_factor=3.0)
    if config.name == "llama":
        again = model_settings(config_json(longer, tree, "float32"))
        assert (again["rope_scaling"], again["rope_factor"]) == ("linear", 3.0)


def test_every_setting_is_a_key_of_a_network():
    known = {field.name for field in fields(ModelConfig)}
    assert {
        key for name in NAMES for key in model_settings(read_config_json(DATA / name))
    } <= known


@pytest.mark.parametrize(
    ("tree", "parameters"),
    [
        pytest.param(
            dict(model_type="gpt2", vocab_size=50257, n_positions=1024)
            | dict(n_embd=1600, n_layer=48, n_head=25),
            1_557_611_200,
            marks=pytest.mark.slow,
        ),
        (
            dict(model_type="llama", vocab_size=128256, hidden_size=4096)
            | dict(intermediate_size=14336, num_hidden_layers=32)
            | dict(num_attention_heads=32, num_key_value_heads=8)
            | dict(max_position_embeddings=131072),
            8_030_261_248,
        ),
        pytest.param(
            dict(model_type="qwen2", vocab_size=152064, hidden_size=3584)
            | dict(intermediate_size=18944, num_hidden_layers=28)
            | dict(num_attention_heads=28, num_key_value_heads=4)
            | dict(max_position_embeddings=32768, sliding_window=131072)
            | dict(use_sliding_window=False),
            7_615_616_512,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["GPT-2 XL", "Llama 3.1 8B", "Qwen2.5 7B"],
)
def test_published_networks_have_their_parameters(tree, parameters):
    *_, leaves = abstract(ModelConfig(**model_settings(tree)))
    assert sum(math.prod(x.shape) for x in leaves.values()) == parameters


def test_older_files_have_the_rope_in_two_fields():
    rope = {"type": "linear", "factor": 2.0}
    older = {k: v for k, v in LLAMA.items() if k != "rope_parameters"}
    older |= {"rope_theta": 5e5, "rope_scaling": rope, "head_dim": None}
    found = model_settings(older)
    assert (found["rope_base"], found["rope_scaling"]) == (5e5, "linear")
    assert (found["rope_factor"], found["head_size"]) == (2.0, None)
    bare = {k: v for k, v in older.items() if not k.startswith("rope")}
    assert model_settings(bare)["rope_base"] == 1e4


def test_the_context_is_the_sliding_window():
    tree = LLAMA | {"model_type": "mistral", "sliding_window": 16}
    assert model_settings(tree)["context"] == 16
    with pytest.raises(BadInput, match=r"at most sliding_window(.|\n)*context=16"):
        check_typed_settings(tree, {"context": 24}, "")
    # Qwen2 says whether it has one.
    plain = tree | {"model_type": "qwen2", "use_sliding_window": False}
    assert model_settings(plain)["context"] == 24


@pytest.mark.parametrize(
    ("kind", "heads", "window"),
    [
        ("llama", 32, None),
        ("mistral", 8, 4096),
        ("mixtral", 8, None),
        ("qwen2", 32, None),
    ],
)
def test_fields_that_are_left_out_are_those_of_the_architecture(kind, heads, window):
    """transformers: MistralConfig and Qwen2Config have numbers, LlamaConfig None."""
    embed = {"num_attention_heads": 32, "hidden_size": 64, "head_dim": 2}
    tree = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | embed
    tree |= {"model_type": kind, "max_position_embeddings": 10000}
    tree.pop("sliding_window", None)
    found = model_settings(tree)
    assert found["kv_heads"] == heads
    assert found["context"] == (window or 10000)
    # Null says that there is none.
    null = model_settings(tree | {"num_key_value_heads": None, "sliding_window": None})
    assert (null["kv_heads"], null["context"]) == (32, 10000)
    if kind == "qwen2":
        assert model_settings(tree | {"use_sliding_window": True})["context"] == 4096
    if window is not None:
        with pytest.raises(BadInput, match="at most sliding_window"):
            check_typed_settings(tree, {"context": 5000}, "")


def test_an_exported_dynamic_rope_keeps_the_context_it_grows_from():
    rope = {"rope_type": "dynamic", "rope_theta": 5e5, "factor": 2.0}
    tree = LLAMA | {"rope_parameters": rope}
    before = model_settings(tree)
    longer = ModelConfig(**before | {"context": 4 * before["context"]})
    for origin in (tree, None):
        made = config_json(longer, origin, "float32")
        assert made["max_position_embeddings"] == before["rope_context"]
        assert model_settings(made)["rope_context"] == before["rope_context"]


@pytest.mark.parametrize("change", [{"kv_heads": 2}, {"head_size": 2}])
def test_heads_that_gpt2_does_not_have_are_not_exported(change):
    tree = read_config_json(DATA / "gpt2")
    config = replace(ModelConfig(**model_settings(tree)), **change)
    for origin in (tree, None):
        with pytest.raises(BadInput, match=r"model\.kv_heads is model\.heads") as told:
            config_json(config, origin, "float32")
        assert f"model.kv_heads={config.heads}" in str(told.value)


def test_a_dynamic_rope_has_another_base_beyond_its_context():
    rates = 1e4 ** (-np.arange(4) / 4)
    one = RopeScaling(kind="dynamic", factor=2.0, context=16)
    np.testing.assert_array_equal(one.stretch(rates, 12), rates)
    base = 1e4 * (2.0 * 40 / 16 - 1) ** (8 / 6)
    np.testing.assert_allclose(one.stretch(rates, 40), base ** (-np.arange(4) / 4))


def test_a_llama3_rope_keeps_fast_pairs_and_stretches_slow_ones():
    one = RopeScaling(kind="llama3", factor=8.0, context=64)
    rates = 2 * math.pi / np.array([10.0, 32.0, 200.0])  # turns: 6.4, 2, 0.32
    kept, mixed, slow = one.stretch(rates, 1000) / rates
    assert (kept, slow) == (1.0, 1 / 8)
    assert mixed == pytest.approx(1 / 3 + (2 / 3) / 8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "lama"}, 'weights of lama are not read(.|\n)*"llama"'),
        ({"model_type": "mamba"}, "model_type is one of gpt2, llama, mistral, qwen2"),
        ({"hidden_act": "gelu"}, "hidden_act is silu"),
        ({"attention_bias": True}, "attention_bias = True is not read"),
        ({"num_hidden_layers": None}, "config.json has no num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size cannot be many"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not read"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is default, linear"),
        ({"rope_parameters": {"rope_type": "linear"}}, "linear have no factor"),
    ],
)
def test_what_no_network_here_has_is_refused(change, said):
    with pytest.raises(BadInput, match=said) as refused:
        model_settings(LLAMA | change)
    assert "remedy" in str(refused.value)


def test_all_of_it_is_told_at_once():
    with pytest.raises(BadInput) as refused:
        model_settings(LLAMA | {"hidden_act": "relu", "mlp_bias": True})
    assert len(refused.value.each) == 2


def test_typed_sizes_are_those_of_the_weights():
    check_typed_settings(LLAMA, {"dropout": 0.1, "context": 4096, "depth": 2}, "")
    with pytest.raises(BadInput, match=r"model\.vocabulary = 50, 48 in config"):
        check_typed_settings(LLAMA, {"vocabulary": 50}, "")


def copied(tmp_path, name="llama3"):
    return Path(shutil.copytree(DATA / name, tmp_path / name))


def rewritten(folder, change):
    """Write the tensors of a folder anew, changed."""
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    safetensors.numpy.save_file(tensors, path)


def drop(tensors):
    del tensors["model.norm.weight"]


def add(tensors):
    tensors["model.extra.weight"] = np.zeros(3, "f4")


def cut_vocabulary(tensors):
    name = "model.embed_tokens.weight"
    tensors[name] = np.ascontiguousarray(tensors[name][:40])


def whole_numbers(tensors):
    tensors["model.norm.weight"] = np.zeros(16, "i4")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop, "lack tensors(.|\n)*model.norm.weight"),
        (add, "the network has not(.|\n)*model.extra.weight"),
        (
            cut_vocabulary,
            r"embed_tokens.weight is \[40, 16\], \[48, 16\] in the network",
        ),
        (whole_numbers, "no real numbers(.|\n)*model.norm.weight is I32"),
    ],
)
def test_other_tensors_are_refused(tmp_path, change, said):
    folder = copied(tmp_path)
    rewritten(folder, change)
    config = ModelConfig(**model_settings(LLAMA))
    *_, leaves = abstract(config)
    with pytest.raises(BadInput, match=said) as refused:
        PretrainedFolder.open(folder).check(config.name, leaves)
    assert "remedy" in str(refused.value)


def test_buffers_and_a_tied_head_are_passed_over(tmp_path):
    """Older files of GPT-2 have masks, and no first part of the names."""
    folder = copied(tmp_path, "gpt2")

    def older(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.zeros((1, 1, 24, 24), "f4")
        tensors["lm_head.weight"] = tensors["wte.weight"]

    rewritten(folder, older)
    found = PretrainedFolder.open(folder)
    config = ModelConfig(**model_settings(found.config))
    *_, leaves = abstract(config)
    places = found.check(config.name, leaves)
    assert places["embed/tokens/embedding"].tensor == "wte.weight"


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def no_header(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")


def no_json(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"{]{]")


def other_json(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b'{"a": 1}')


def empty(folder):
    (folder / "model.safetensors").write_bytes(b"")


def no_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_config(folder):
    (folder / "config.json").unlink()


def odd_config(folder):
    (folder / "config.json").write_text("[1, 2]")


def missing_shard(folder):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def outer_shard(folder):
    index = {"weight_map": {"a": "../llama3/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def odd_index(folder):
    (folder / "model.safetensors.index.json").write_text('{"weights": 1}')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "is damaged(.|\n)*cut off at .* are missing"),
        (no_header, "is damaged(.|\n)*with a header of"),
        (no_json, "a header that is no JSON"),
        (other_json, "a header of another form"),
        (empty, "is damaged"),
        (no_weights, "no weights in(.|\n)*pytorch_model.bin"),
        (no_config, "no config.json in"),
        (odd_config, "config.json is a table"),
        (missing_shard, "model-00001-of-00002.safetensors"),
        (outer_shard, "is in its folder"),
        (odd_index, "an index names the file of each tensor"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, damage, said):
    folder = copied(tmp_path)
    damage(folder)
    with pytest.raises(BadInput, match=said) as refused:
        PretrainedFolder.open(folder)
    assert "remedy" in str(refused.value)


def test_biases_that_mixtral_does_not_have_are_not_exported():
    config = fill_sizes(ModelConfig(name="llama", experts=4, qkv_bias=True))
    with pytest.raises(BadInput, match=r"model\.qkv_bias=false"):
        config_json(config, None, "float32")


def test_a_name_of_the_hub_is_told_how_to_fetch_it():
    with pytest.raises(BadInput, match=r"hf download meta-llama/Llama-3\.2-1B --local"):
        read_config_json(Path("meta-llama/Llama-3.2-1B"))


@pytest.mark.parametrize("size", ["tiny", None])
@pytest.mark.parametrize("name", ["gpt2_small", "llama", "mixtral"])
def test_a_network_of_a_preset_is_written_with_its_sizes(name, size):
    config = ModelConfig(name=name, size=size or "full", depth=3)
    filled = fill_sizes(config)
    tree = config_json(filled, None, "float32")
    left = {key for key, value in tree.items() if value is None}
    assert left <= {"sliding_window"}
    again = ModelConfig(**model_settings(tree))
    assert model_factory(again).func.sizes(again) == model_factory(config).func.sizes(
        config
    )
    assert again.rope_base == filled.rope_base
