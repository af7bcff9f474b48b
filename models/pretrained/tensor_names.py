"""Which tensor of Hugging Face is which leaf of a network, as tables read both ways."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, kw_only=True)
class LeafTensor:
    """Where the numbers of a leaf are: a tensor, or some of its columns."""

    tensor: str
    """Name of the tensor; `{}` is the number of the block, `*` that of an expert."""
    transposed: bool = False
    """Whether rows and columns are exchanged: torch's linear layers are `[out, in]`."""
    part: int = 0
    """Which part of the tensor's last dim the leaf is."""
    parts: int = 1
    """Into how many parts of a size that dim is cut."""

    @property
    def is_stacked(self) -> bool:
        """Whether the first dim of the leaf has a tensor for each of its rows."""
        return "*" in self.tensor

    def tensors(self, leaf_shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that the leaf is made of.

        >>> LeafTensor(tensor="experts.*.w1").tensors((2, 8, 4))
        ('experts.0.w1', 'experts.1.w1')
        """
        if not self.is_stacked:
            return (self.tensor,)
        rows = range(leaf_shape[0])
        return tuple(self.tensor.replace("*", str(row)) for row in rows)

    def tensor_shape(self, leaf_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        leaf_shape = leaf_shape[self.is_stacked :]
        shape = leaf_shape[::-1] if self.transposed else leaf_shape
        return (*shape[:-1], shape[-1] * self.parts)

    def index(
        self, leaf_index: tuple[slice, ...], leaf_shape: tuple[int, ...]
    ) -> tuple[slice, ...]:
        """Return the slice of each tensor that a slice of the leaf is."""
        first = int(self.is_stacked)
        leaf_index, leaf_shape = leaf_index[first:], leaf_shape[first:]
        # jax asks for slices with open ends: `indices` closes them.
        bounds = [one.indices(n) for one, n in zip(leaf_index, leaf_shape, strict=True)]
        bounds = bounds[::-1] if self.transposed else bounds
        size = (leaf_shape[::-1] if self.transposed else leaf_shape)[-1]
        found = [slice(start, stop) for start, stop, _ in bounds]
        # The parts lie side by side along the last dim of the tensor.
        place = self.part * size
        found[-1] = slice(found[-1].start + place, found[-1].stop + place)
        return tuple(found)


def _linear(tensor: str) -> LeafTensor:
    return LeafTensor(tensor=tensor, transposed=True)


def _plain(tensor: str) -> LeafTensor:
    return LeafTensor(tensor=tensor)


def _fused(tensor: str, part: int) -> LeafTensor:
    return LeafTensor(tensor=tensor, part=part, parts=3)


_GPT2_BLOCK: Final = "transformer.h.{}"
_LLAMA_BLOCK: Final = "model.layers.{}"

_NAMES: Final[Mapping[str, Mapping[str, LeafTensor]]] = MappingProxyType(
    {
        # Its linear layers are `[in, out]`, and one has queries, keys and values.
        "gpt2_small": {
            "embed/tokens/embedding": _plain("transformer.wte.weight"),
            "embed/positions/embedding": _plain("transformer.wpe.weight"),
            "block/norm1/scale": _plain(f"{_GPT2_BLOCK}.ln_1.weight"),
            "block/norm1/bias": _plain(f"{_GPT2_BLOCK}.ln_1.bias"),
            **{
                f"block/attention/{name}/{ours}": _fused(
                    f"{_GPT2_BLOCK}.attn.c_attn.{theirs}", part
                )
                for part, name in enumerate(("query", "key", "value"))
                for ours, theirs in (("kernel", "weight"), ("bias", "bias"))
            },
            **{
                f"block/{ours}/{leaf}": _plain(f"{_GPT2_BLOCK}.{theirs}.{tensor}")
                for ours, theirs in (
                    ("attention/out", "attn.c_proj"),
                    ("mlp/up", "mlp.c_fc"),
                    ("mlp/down", "mlp.c_proj"),
                )
                for leaf, tensor in (("kernel", "weight"), ("bias", "bias"))
            },
            "block/norm2/scale": _plain(f"{_GPT2_BLOCK}.ln_2.weight"),
            "block/norm2/bias": _plain(f"{_GPT2_BLOCK}.ln_2.bias"),
            "head/norm/scale": _plain("transformer.ln_f.weight"),
            "head/norm/bias": _plain("transformer.ln_f.bias"),
            "head/logits/kernel": _linear("lm_head.weight"),
        },
        "llama": {
            "embed/tokens/embedding": _plain("model.embed_tokens.weight"),
            "block/norm1/scale": _plain(f"{_LLAMA_BLOCK}.input_layernorm.weight"),
            "block/norm2/scale": _plain(
                f"{_LLAMA_BLOCK}.post_attention_layernorm.weight"
            ),
            **{
                f"block/attention/{ours}/kernel": _linear(
                    f"{_LLAMA_BLOCK}.self_attn.{theirs}_proj.weight"
                )
                for ours, theirs in (
                    *(("query", "q"), ("key", "k")),
                    *(("value", "v"), ("out", "o")),
                )
            },
            **{
                f"block/attention/{name}/bias": _plain(
                    # q, k and v: leaves that there are where `model.qkv_bias` is set.
                    f"{_LLAMA_BLOCK}.self_attn.{name[0]}_proj.bias"
                )
                for name in ("query", "key", "value")
            },
            **{
                f"block/mlp/{name}/kernel": _linear(
                    f"{_LLAMA_BLOCK}.mlp.{name}_proj.weight"
                )
                for name in ("gate", "up", "down")
            },
            "block/mlp/router": _linear(f"{_LLAMA_BLOCK}.block_sparse_moe.gate.weight"),
            **{
                f"block/mlp/{ours}": _linear(
                    f"{_LLAMA_BLOCK}.block_sparse_moe.experts.*.{theirs}.weight"
                )
                for ours, theirs in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
            },
            "head/norm/scale": _plain("model.norm.weight"),
            "head/logits/kernel": _linear("lm_head.weight"),
        },
    }
)
TENSOR_NAMES: Final[Mapping[str, Mapping[str, LeafTensor]]] = MappingProxyType(
    # A mixtral is a llama with experts.
    {**_NAMES, "mixtral": _NAMES["llama"]}
)
"""Tensor by leaf of each network; `block` is any of its blocks."""

_BUFFERS: Final = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.inv_freq)$")
"""Constants that older files have beside the weights."""


def leaf_tensors(
    model: str, leaves: Iterable[str], present: Iterable[str] | None = None
) -> dict[str, LeafTensor]:
    """Return where each leaf of a network is.

    Args:
        model: the network's name in the registry.
        leaves: names of its leaves.
        present: tensors that there are; files of the network without its head leave
            out the first part of all names.
    """
    table = TENSOR_NAMES[model]
    prefix = table["embed/tokens/embedding"].tensor.partition(".")[0] + "."
    names = None if present is None else list(present)
    bare = names is not None and not any(n.startswith(prefix) for n in names)
    found = {}
    for leaf in leaves:
        block = re.match(r"block(\d+)/", leaf)
        rule = table[re.sub(r"^block\d+/", "block/", leaf)]
        tensor = rule.tensor.format(block[1] if block else "")
        found[leaf] = LeafTensor(
            tensor=tensor.removeprefix(prefix) if bare else tensor,
            transposed=rule.transposed,
            part=rule.part,
            parts=rule.parts,
        )
    return found


def is_ignored(tensor: str, wanted: Iterable[str]) -> bool:
    """Tell whether a tensor that no leaf wants is no weight of the network.

    >>> is_ignored("h.0.attn.bias", ()), is_ignored("h.0.attn.c_attn.bias", ())
    (True, False)
    """
    # A head that is the embedding's own table may be stored once more.
    is_tied = tensor == "lm_head.weight" and tensor not in wanted
    return bool(_BUFFERS.search(tensor)) or is_tied
