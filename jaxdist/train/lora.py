"""LoRA: low-rank adapters beside linear layers whose own weights stay frozen.

    y = x W + alpha / rank * (x A) B      A [in, rank] gaussian, B [rank, out] zeros

A step moves A and B alone. B begins at zero, so before the first step a network returns
what it does without adapters, to the last bit; after training W + alpha / rank * A B
takes the place of W.

Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
"""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from flax import nnx

ADAPTER_PATTERNS: Final = ("*.lora_a", "*.lora_b")
"""Paths of the parameters that adapters are."""

ALL_LINEAR: Final = "all-linear"
"""The target that is each linear layer but that of the logits, as PEFT calls it."""

_PEFT_TARGETS: Final = MappingProxyType(
    {
        "q_proj": "query",
        "k_proj": "key",
        "v_proj": "value",
        "o_proj": "out",
        "gate_proj": "gate",
        "up_proj": "up",
        "down_proj": "down",
        "c_fc": "up",
        "c_proj": "out,down",
        "c_attn": "query,key,value",
    }
)
"""What layers are called here, by the names that PEFT users type."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters, which are trained in place of the network's own weights."""

    rank: int = 0
    """Columns of A and rows of B, PEFT's r; 0: no adapters, all weights are trained."""
    alpha: int | float = 16
    """Adapters are scaled by this over the rank, PEFT's lora_alpha."""
    targets: tuple[str, ...] = (ALL_LINEAR,)
    """Linear layers with adapters, PEFT's target_modules: names such as query,value,
    paths, or patterns of paths; all-linear: each but that of the logits.
    """

    def __post_init__(self) -> None:
        if self.rank < 0 or not self.alpha > 0 or not self.targets:
            raise BadInput(
                "these adapters cannot be",
                rule="lora.rank is 1 or more, or 0 for none; lora.alpha is above 0; "
                "lora.targets names a layer",
                values=f"lora.rank = {self.rank}, lora.alpha = {self.alpha}, "
                f"lora.targets = {','.join(self.targets)}",
                remedy="lora.rank=8 lora.alpha=16 lora.targets=all-linear",
            )
        default = type(self).__dataclass_fields__
        changed = [
            key
            for key in ("alpha", "targets")
            if getattr(self, key) != default[key].default
        ]
        if not self.rank and changed:
            raise BadInput(
                "adapters of rank 0 are none",
                rule="lora.rank is 1 or more where anything else of lora is set",
                values=f"lora.rank = 0, lora.{changed[0]} is set",
                remedy="lora.rank=8",
            )

    @property
    def scale(self) -> float:
        """What the product of A and B is multiplied by."""
        return self.alpha / self.rank


def add_adapters(network: "nnx.Module", config: LoraConfig, rngs: "nnx.Rngs") -> None:
    """Give linear layers of a network adapters; in place.

    Args:
        network: whose layers are those of `jaxdist.layers`.
        config: rank, alpha and targets.
        rngs: random streams that A is drawn from.

    Raises:
        BadInput: no linear layers, a target that is none of them, or a rank that is
            larger than a side of a kernel.
    """
    for path, layer in _target_layers(network, config).items():
        sides = layer.in_features, layer.out_features
        if config.rank > min(sides):
            raise BadInput(
                f"{path} has no room for adapters of this rank",
                rule="lora.rank is at most the smaller side of each kernel",
                values=f"lora.rank = {config.rank}, the kernel of {path} is "
                f"{sides[0]} x {sides[1]}",
                remedy=f"lora.rank={min(8, *sides)}, or lora.targets without "
                f"{path.rpartition('.')[2]}",
            )
        layer.add_adapter(config.rank, config.scale, rngs)


def _target_layers(network: "nnx.Module", config: LoraConfig) -> dict[str, Any]:
    """Return the layers that get adapters, by path."""
    from flax import nnx

    from jaxdist.core.block_protocol import LogitsLayer
    from jaxdist.layers import Linear

    every = {
        ".".join(map(str, path)): layer
        for path, layer in nnx.iter_modules(network)
        if isinstance(layer, Linear)
    }
    # The loss multiplies the logits out of that layer's own kernel.
    declared = getattr(network, "answers", None)
    logits = declared.layer if isinstance(declared, LogitsLayer) else ""
    linear = {path: layer for path, layer in every.items() if path != logits}
    if not linear:
        raise BadInput(
            f"{type(network).__name__} has no layers for adapters",
            rule="LoRA is for linear layers, jaxdist.layers.Linear, but that of the "
            "logits",
            values=f"lora.rank = {config.rank}, {len(every)} linear layers",
            remedy="lora.rank=0; optim.frozen=PATTERN trains a part of a network",
        )
    found: dict[str, Any] = {}
    for target in config.targets:
        own = {p: x for p, x in linear.items() if _is_target(p, target)}
        if not own:
            names = list(dict.fromkeys(p.rpartition(".")[2] for p in linear))
            near = did_you_mean(target, names) or names[0]
            meant = {each: each for each in config.targets} | {target: near}
            meant |= _PEFT_TARGETS
            is_logits = bool(logits) and _is_target(logits, target)
            why = ", which makes the logits" * is_logits
            raise BadInput(
                f"no linear layer is at {target}",
                rule="lora.targets are names, paths or patterns of linear layers, "
                f"separated by commas, or {ALL_LINEAR}",
                values=f"lora.targets has {target!r}{why}; the network has "
                f"{', '.join(names)}, such as {next(iter(linear))}",
                remedy="lora.targets=" + ",".join(meant[x] for x in config.targets),
            )
        found |= own
    return found


def _is_target(path: str, target: str) -> bool:
    """Tell whether a target names the layer at a path.

    >>> _is_target("block0.attention.query", "query")
    True
    """
    named = path == target or path.endswith(f".{target}")
    return target == ALL_LINEAR or named or fnmatch.fnmatchcase(path, target)


def merge_adapter(
    kernel: "np.ndarray", a: "np.ndarray", b: "np.ndarray", scale: float
) -> "np.ndarray":
    """Return the kernel of a layer that does without its adapter what it did with it.

    Args:
        kernel: W, `[in, out]`.
        a: A, `[in, rank]`.
        b: B, `[rank, out]`.
        scale: alpha / rank.
    """
    import numpy as np

    # In float64: the sum is rounded once, to the dtype of the kernel.
    wide = (x.astype(np.float64) for x in (kernel, a, b))
    w, left, right = wide
    return (w + scale * (left @ right)).astype(kernel.dtype)


def is_adapter(name: str) -> bool:
    """Tell whether a leaf is a part of an adapter, by its name."""
    return name.rpartition("/")[2] in ("lora_a", "lora_b")


def adapter_kernels(names: Iterable[str]) -> dict[str, str]:
    """Return the name of the kernel beside each A, by the name of A.

    >>> adapter_kernels(["mlp/up/kernel", "mlp/up/lora_a", "mlp/up/lora_b"])
    {'mlp/up/lora_a': 'mlp/up/kernel'}
    """
    return {
        name: name.removesuffix("lora_a") + "kernel"
        for name in names
        if name.rpartition("/")[2] == "lora_a"
    }
