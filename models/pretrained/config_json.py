"""`config.json` of Hugging Face as settings of a network, and back.

Nothing here needs jax: a plan is made from such a file alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.core.text_encoding import read_text
from jaxdist.core.validation import json_text, parse_json
from jaxdist.models.config import ModelConfig

CONFIG_FILE: Final = "config.json"
_LLAMA_FAMILY: Final = ("llama", "mixtral")
_WINDOWED: Final = ("mistral", "mixtral")
"""Architectures that have a sliding window where a file says one."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture of transformers, as a network of ours."""

    model: str
    """Network of the registry."""
    class_name: str
    """Its class in transformers."""
    fields: Mapping[str, str]
    """Field of `config.json` by key of `ModelConfig`, where both mean the same."""
    defaults: Mapping[str, Any]
    """Values of fields that a file leaves out, by the architecture's own code; null in
    a file is a value of its own."""
    fixed: Mapping[str, tuple[Any, ...]]
    """Values that our network has of fields that others may have otherwise."""


def _llama_like(class_name: str, **defaults: Any) -> Architecture:
    """Return an architecture whose files have the fields of Llama's.

    Args:
        class_name: its class in transformers.
        defaults: values of fields that it has beside Llama's own, or otherwise.
    """
    return Architecture(
        model="llama",
        class_name=class_name,
        fields={
            "vocabulary": "vocab_size",
            "context": "max_position_embeddings",
            "depth": "num_hidden_layers",
            "heads": "num_attention_heads",
            "kv_heads": "num_key_value_heads",
            "embed": "hidden_size",
            "hidden": "intermediate_size",
            "norm_epsilon": "rms_norm_eps",
            "tied_head": "tie_word_embeddings",
        },
        defaults={
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "rope_theta": 10000.0,
            **defaults,
        },
        fixed={
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "partial_rotary_factor": (1, 1.0),
        },
    )


def _with_experts(dense: Architecture) -> Architecture:
    """Return an architecture with experts in place of its feed-forward part."""
    counts = {"experts": "num_local_experts", "chosen_experts": "num_experts_per_tok"}
    return replace(
        dense,
        model="mixtral",
        fields={**dense.fields, **counts},
        defaults={
            **dense.defaults,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    )


ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "gpt2": Architecture(
            model="gpt2_small",
            class_name="GPT2LMHeadModel",
            fields={
                "vocabulary": "vocab_size",
                "context": "n_positions",
                "depth": "n_layer",
                "heads": "n_head",
                # GPT-2 has no grouped queries: one field stands for both.
                "kv_heads": "n_head",
                "embed": "n_embd",
                "hidden": "n_inner",
                "norm_epsilon": "layer_norm_epsilon",
                "tied_head": "tie_word_embeddings",
            },
            defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
            fixed={
                "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
                "add_cross_attention": (False,),
                "scale_attn_weights": (True,),
                "scale_attn_by_inverse_layer_idx": (False,),
            },
        ),
        "llama": _llama_like("LlamaForCausalLM"),
        "mistral": _llama_like(
            "MistralForCausalLM", num_key_value_heads=8, sliding_window=4096
        ),
        "qwen2": _llama_like(
            "Qwen2ForCausalLM", num_key_value_heads=32, sliding_window=4096
        ),
        "mixtral": _with_experts(
            _llama_like("MixtralForCausalLM", num_key_value_heads=8)
        ),
    }
)
"""Architectures that can be read, by their `model_type`."""

_ROPE_FIELDS: Final = {
    "rope_factor": "factor",
    "rope_low_factor": "low_freq_factor",
    "rope_high_factor": "high_freq_factor",
    "rope_context": "original_max_position_embeddings",
}
"""Field of a rope by key of `ModelConfig`."""
_ROPE_NEEDS: Final = {
    "none": (),
    "linear": ("rope_factor",),
    "dynamic": ("rope_factor",),
    "llama3": tuple(_ROPE_FIELDS),
}


def read_config_json(path: Path) -> dict[str, Any]:
    """Read a `config.json`, or the one of a folder.

    Raises:
        BadInput: there is none, or it is no table.
    """
    file = path / CONFIG_FILE if path.is_dir() else path
    if not file.is_file():
        # A name of the hub is a path that is not there.
        is_name = not path.exists() and len(path.parts) == 2
        fetch = f"hf download {path} --local-dir {path.name}, then {path.name}"
        raise BadInput(
            f"no {CONFIG_FILE} in {path}" if path.is_dir() else f"there is no {path}",
            rule=f"sizes of a network are in a {CONFIG_FILE} of Hugging Face, and its "
            "weights in the folder of that file",
            values=f"{file} is not there",
            remedy=fetch if is_name else "model.save_pretrained(FOLDER) writes one",
        )
    try:
        tree = parse_json(read_text(file))
    except ValueError as error:
        if isinstance(error, BadInput):
            raise
        raise _no_table(file, str(error)) from error
    if not isinstance(tree, dict):
        raise _no_table(file, f"it is {json_text(tree)[:60]}")
    return tree


def _no_table(file: Path, said: str) -> BadInput:
    return BadInput(
        f"{file} cannot be read",
        rule=f"{CONFIG_FILE} is a table in JSON",
        values=said,
        remedy="copy or download the file again",
    )


def architecture_of(tree: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a `config.json`.

    Raises:
        BadInput: it is none of those that can be read.
    """
    kind = tree.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        near = did_you_mean(str(kind), ARCHITECTURES)
        raise BadInput(
            f"weights of {kind or 'an unknown architecture'} are not read",
            rule=f"model_type is one of {', '.join(ARCHITECTURES)}",
            values=f"model_type = {kind}, architectures = "
            f"{', '.join(map(str, tree.get('architectures') or ())) or 'not said'}",
            remedy=f'"model_type": "{near}", if it is one'
            if near
            else "a network of your own, model.name=file.py:Net (docs/your_model.md)",
        )
    return ARCHITECTURES[kind]


def model_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the network that a `config.json` describes.

    Returns:
        Values by key of `ModelConfig`.

    Raises:
        BadInput: an architecture or a part of one that no network here has; all
            parts together.

    >>> found = model_settings({"model_type": "gpt2", "vocab_size": 48, "n_embd": 16,
    ...     "n_positions": 24, "n_layer": 2, "n_head": 4})
    >>> found["name"], found["hidden"], found["tied_head"]
    ('gpt2_small', 64, True)
    """
    known = architecture_of(tree)
    errors: list[BadInput] = []
    # A field that is left out has the architecture's default; null is as good as a
    # field that follows from others: n_inner, head_dim, num_key_value_heads.
    full = {k: v for k, v in {**known.defaults, **tree}.items() if v is not None}
    found: dict[str, Any] = {"name": known.model, "size": "full"}
    # What a file may leave out follows from others.
    if known.model == "gpt2_small":
        full.setdefault("n_inner", 4 * full.get("n_embd", 0))
    else:
        full.setdefault("num_key_value_heads", full.get("num_attention_heads"))
    for key, name in known.fields.items():
        kinds = {"norm_epsilon": (int, float), "tied_head": (bool,)}.get(key, (int,))
        value: Any = full.get(name)
        # By type and not `isinstance`: true is an int in Python.
        if type(value) not in kinds or (key != "tied_head" and value <= 0):
            errors.append(
                BadInput(
                    f"{CONFIG_FILE} has no {name}"
                    if value is None
                    else f"{name} cannot be {value}",
                    rule=f"{name} is the network's {key}",
                    values=f"{name} = {value}",
                    remedy=f'"{name}": ... as the network was trained',
                )
            )
        found[key] = value
    # A field that is left out has the allowed value in the architecture's own defaults.
    for name, allowed in known.fixed.items():
        if name in full and full[name] not in allowed:
            errors.append(
                BadInput(
                    f"{known.class_name} with {name} = {full[name]} is not read",
                    rule=f"{name} is {' or '.join(map(str, allowed))}",
                    values=f"{name} = {full[name]}",
                    remedy="other weights, or a network of your own "
                    "(docs/your_model.md)",
                )
            )
    if "quantization_config" in full:
        errors.append(
            BadInput(
                "quantized weights are not read",
                rule="weights are float32, bfloat16 or float16",
                values=f"quantization_config = {full['quantization_config']}",
                remedy="the weights that these were quantized from",
            )
        )
    raise_all(errors)
    if known.model in _LLAMA_FAMILY:
        # Behind the errors: what is read there is divided by sizes.
        found |= _llama_settings(full, found)
        # Within its window a network with one is a network without.
        if (window := sliding_window(tree)) is not None:
            found["context"] = min(found["context"], window)
    return found


def _llama_settings(
    full: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the Llama family has beside sizes: rope and biases."""
    head = full.get("head_dim") or found["embed"] // found["heads"]
    is_plain = head * found["heads"] == found["embed"]
    # Older files have the base beside the scaling, newer ones inside of one table.
    rope = dict(full.get("rope_parameters") or full.get("rope_scaling") or {})
    kind = rope.get("rope_type") or rope.get("type") or "default"
    kind = {"default": "none"}.get(kind, kind)
    if kind not in _ROPE_NEEDS:
        raise BadInput(
            f"rotary positions of type {kind} are not read",
            rule="rope_type is default, linear, dynamic or llama3",
            values=f"rope_type = {kind}",
            remedy="other weights, or a network of your own (docs/your_model.md)",
        )
    settings: dict[str, Any] = {
        "head_size": None if is_plain else head,
        # Qwen2 has these biases in its code: no field says so.
        "qkv_bias": full["model_type"] == "qwen2",
        "rope_base": float(rope.get("rope_theta", full["rope_theta"])),
        "rope_scaling": kind,
    }
    needed = ", ".join(_ROPE_FIELDS[key] for key in _ROPE_NEEDS[kind])
    for key in _ROPE_NEEDS[kind]:
        name = _ROPE_FIELDS[key]
        value: Any = rope.get(name)
        if type(value) not in (int, float) or value <= 0:
            raise BadInput(
                f"rotary positions of type {kind} have no {name}",
                rule=f"{kind} takes {needed}",
                values=f"{name} = {value}",
                remedy=f'"{name}": ... as the network was trained',
            )
        settings[key] = int(value) if key == "rope_context" else float(value)
    # Its base grows with T / L, where L is the context of the file (rope_scaling.py).
    if kind == "dynamic":
        settings["rope_context"] = found["context"]
    return settings


def sliding_window(tree: Mapping[str, Any]) -> int | None:
    """Return how many tokens each token reads at most; None: all before it."""
    # Mistral uses its window wherever it has one; Qwen2 has a second field for that.
    is_used = tree.get("use_sliding_window", tree.get("model_type") in _WINDOWED)
    defaults = architecture_of(tree).defaults
    window = tree.get("sliding_window", defaults.get("sliding_window"))
    return int(window) if is_used and window else None


_FREE_KEYS: Final = ("context", "dropout")
"""Settings that weights do not fix, beside those of a rope."""


def check_typed_settings(
    tree: Mapping[str, Any], typed: Mapping[str, Any], remedy: str
) -> None:
    """Refuse settings that the weights have otherwise.

    Args:
        tree: the `config.json`.
        typed: values by key of `ModelConfig`, as they were asked for.
        remedy: what to type for other sizes.

    Raises:
        BadInput: all of them together.
    """
    known, window = model_settings(tree), sliding_window(tree)
    errors = []
    for key, value in typed.items():
        fixed = key in known and not key.startswith((*_FREE_KEYS, "rope_"))
        # Learned positions are a table of weights.
        fixed |= key == "context" and known["name"] == "gpt2_small"
        if fixed and value != known[key]:
            errors.append(
                BadInput(
                    f"the weights have another {key}",
                    rule="a network has the sizes of the weights that it starts from",
                    values=f"model.{key} = {value}, {known[key]} in {CONFIG_FILE}",
                    remedy=(f"model.{key}={known[key]}", remedy),
                )
            )
        elif key == "context" and window is not None and (value or 0) > window:
            errors.append(
                BadInput(
                    "the context is longer than the network's sliding window",
                    rule="attention here reads all tokens before, so model.context is "
                    "at most sliding_window",
                    values=f"model.context = {value}, sliding_window = {window}",
                    remedy=f"model.context={window}",
                )
            )
    raise_all(errors)


def config_json(
    model: ModelConfig, origin: Mapping[str, Any] | None, dtype: str
) -> dict[str, Any]:
    """Return the `config.json` of a network.

    Args:
        model: its settings, none of the sizes left open.
        origin: the file that its weights came with; returned as it is where it still
            describes the network.
        dtype: of the weights, as torch names it.

    Raises:
        BadInput: the network is none of transformers'.
    """
    tree = dict(origin or {})
    kind = tree.get("model_type") or _model_type(model)
    known = ARCHITECTURES[kind]
    if known.model == "gpt2_small":
        _check_heads(model)
    if known.model == "mixtral" and model.qkv_bias:
        raise BadInput(
            "Mixtral of transformers has no biases",
            rule="model.qkv_bias is false in a network with experts that is exported: "
            "transformers would leave the biases out",
            values=f"model.qkv_bias = {model.qkv_bias}, "
            f"model.experts = {model.experts}",
            remedy="train with model.qkv_bias=false",
        )
    if origin is not None:
        before = model_settings(origin)
        changed = {
            key: value
            for key, value in before.items()
            if getattr(model, key) != value and key != "size"
        }
        if not changed:
            # Older files call it torch_dtype.
            name = "torch_dtype" if "torch_dtype" in tree else "dtype"
            return tree | ({name: dtype} if name in tree else {})
    tree |= {"architectures": [known.class_name], "model_type": kind, "dtype": dtype}
    tree |= {name: getattr(model, key) for key, name in known.fields.items()}
    if known.model == "gpt2_small":
        return tree | {"activation_function": "gelu_new"}
    if model.rope_scaling == "dynamic" and model.rope_context:
        # Its base grows beyond this field, whatever contexts were trained on.
        tree["max_position_embeddings"] = model.rope_context
    # Both are written anew below: the origin's would contradict the settings.
    tree.pop("rope_scaling", None)
    tree.pop("torch_dtype", None)
    kinds = {"none": "default"}
    rope = {
        "rope_type": kinds.get(model.rope_scaling, model.rope_scaling),
        "rope_theta": model.rope_base or 5e5,
    }
    rope |= {
        _ROPE_FIELDS[k]: getattr(model, k) for k in _ROPE_NEEDS[model.rope_scaling]
    }
    # Readers of before have the base beside it, and no scaling of this name.
    tree |= {"rope_parameters": rope, "rope_theta": rope["rope_theta"]}
    if model.rope_scaling != "none":
        tree["rope_scaling"] = rope
    heads, embed = model.heads or 1, model.embed or 1
    # A new network has no window; a file without this field has its architecture's.
    window = None if origin is None else known.defaults.get("sliding_window")
    return tree | {
        "hidden_act": "silu",
        "head_dim": model.head_size or embed // heads,
        "sliding_window": tree.get("sliding_window", window),
    }


def _check_heads(model: ModelConfig) -> None:
    """Refuse heads that GPT-2 of transformers does not have."""
    heads, embed = model.heads or 1, model.embed or 1
    # It cuts one product of 3 x n_embd features into queries, keys and values.
    if (model.kv_heads or heads) == heads and (
        model.head_size is None or model.head_size * heads == embed
    ):
        return
    raise BadInput(
        "GPT-2 of transformers has no such heads",
        rule="model.kv_heads is model.heads, and model.head_size is model.embed / "
        "model.heads: its config.json has no field for others",
        values=f"model.heads = {heads}, model.kv_heads = {model.kv_heads}, "
        f"model.embed = {embed}, model.head_size = {model.head_size}",
        remedy=f"train with model.kv_heads={heads} and without model.head_size, or "
        "with model.name=llama",
    )


def _model_type(model: ModelConfig) -> str:
    if model.name == "gpt2_small":
        return "gpt2"
    if model.experts or model.name == "mixtral":
        return "mixtral"
    return "qwen2" if model.qkv_bias else "llama"
