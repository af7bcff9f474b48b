"""Which network to train, and its size."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import check_range

Statistics = Literal["global", "replica"]
# fmt: off
DenseLoss = Literal[
    "cross_entropy", "dice", "dice_cross_entropy", "l1", "l2", "relative_l2"
]
# fmt: on
RopeScalingKind = Literal["none", "linear", "dynamic", "llama3"]
"""How the angles of rotary positions are stretched for longer contexts."""

_POSITIVE_KEYS: Final = (
    "norm_group",
    *("width", "classes", "channels"),
    *("vocabulary", "context", "depth"),
    *("heads", "kv_heads", "embed", "hidden", "head_size", "rope_context"),
    *("experts", "chosen_experts"),
)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Settings of the network; None leaves a setting to the network itself."""

    name: str = "resnet8"
    """Name in the registry."""
    size: Literal["full", "tiny"] = "full"
    """The network of the paper, or a small one with each kind of its blocks."""
    width: int | None = None
    """Channels of the first convolution; all others keep their proportion to it."""
    classes: int | None = None
    """Outputs of the head."""
    channels: int | None = None
    """Channels of an input image."""
    dropout: float | None = None
    """Share of features dropped before the head, 0 to below 1."""
    norm: Statistics = "global"
    """Samples that share batch statistics: the whole batch or a few replicas'."""
    norm_group: int = 1
    """Neighbouring replicas that share batch statistics where norm=replica."""
    zero_gamma: bool = False
    """Whether residual blocks begin as their shortcut: the scale of their last norm
    starts at zero.
    """
    aux: bool = False
    """Whether auxiliary heads take part in training."""
    loss: DenseLoss | None = None
    """Loss of a network that says something for each pixel: of classes cross_entropy,
    dice or dice_cross_entropy, of numbers l1, l2 or relative_l2; none: cross_entropy.
    """
    loss_weights: tuple[float, ...] = ()
    """Weight of each class or number in that loss; empty: 1 each."""
    vocabulary: int | None = None
    """Distinct tokens or words; none: those of the data or the preset."""
    context: int | None = None
    """Most tokens that one sample has; none: those of the data or the preset."""
    depth: int | None = None
    """Blocks of a Transformer; none: the preset's, as below."""
    heads: int | None = None
    """Attention heads."""
    kv_heads: int | None = None
    """Heads of keys and values, each shared by several heads of queries."""
    embed: int | None = None
    """Features of a token between the blocks; of s2vt, of a frame and of a word."""
    hidden: int | None = None
    """Features inside a block's feed-forward part, none: 4 x embed; of s2vt, units of
    each LSTM.
    """
    head_size: int | None = None
    """Features of an attention head; none: embed / heads."""
    experts: int | None = None
    """Experts in the feed-forward part of a llama's block; none: the preset's, which
    llama has none of, and mixtral 8.
    """
    chosen_experts: int | None = None
    """Experts that a token goes through; none: the preset's, 2."""
    capacity_factor: float | None = None
    """Slots of an expert in each sample of a training batch, in multiples of its equal
    share; choices that find none left are dropped. None: no choice is dropped.
    """
    balance_weight: float | None = None
    """Weight of the load-balancing loss of each block's experts; none: 0.01."""
    router_z_weight: float = 0.0
    """Weight of the z loss of each block's router, which keeps its scores small."""
    tied_head: bool = True
    """Whether a language model's head is its table of tokens."""
    qkv_bias: bool = False
    """Whether a llama's queries, keys and values have biases, as Qwen2 has them."""
    norm_epsilon: float | None = None
    """What a Transformer's norms add to a variance; none: 1e-5."""
    rope_base: float | None = None
    """Base of the frequencies of rotary positions; none: 500,000."""
    rope_scaling: RopeScalingKind = "none"
    """How rotary positions are stretched for contexts longer than `rope_context`."""
    rope_factor: float = 1.0
    """How many times longer; of dynamic, in the exponent."""
    rope_low_factor: float = 1.0
    """Turns within `rope_context` below which llama3 stretches a frequency whole."""
    rope_high_factor: float = 4.0
    """Turns within `rope_context` above which llama3 leaves a frequency as it is."""
    rope_context: int | None = None
    """Tokens that the unstretched network was trained on; none: `model.context`."""

    def __post_init__(self) -> None:
        # A group would be silently ignored.
        if self.norm == "global" and self.norm_group != 1:
            raise BadInput(
                "all replicas are one group already",
                rule="model.norm_group is for model.norm=replica",
                values=f"model.norm = global, model.norm_group = {self.norm_group}",
                remedy=f"model.norm=replica model.norm_group={self.norm_group}",
            )
        for key in _POSITIVE_KEYS:
            if (value := getattr(self, key)) is not None:
                check_range(f"model.{key}", value, minimum=1)
        for key in ("norm_epsilon", "rope_base", "rope_factor", "rope_low_factor"):
            value = getattr(self, key)
            # `not >` rather than `<=`, so that NaN is refused.
            if value is not None and not value > 0:
                raise BadInput(
                    f"model.{key} is out of range",
                    rule=f"model.{key} is above 0",
                    values=f"model.{key} = {value}",
                    remedy=f"model.{key}={ModelConfig.__dataclass_fields__[key].default}",
                )
        # llama3 divides by their difference (rope_scaling.py).
        if self.rope_high_factor <= self.rope_low_factor:
            raise BadInput(
                "no frequencies lie between those that are stretched and the others",
                rule="model.rope_high_factor is above model.rope_low_factor",
                values=f"model.rope_low_factor = {self.rope_low_factor}, "
                f"model.rope_high_factor = {self.rope_high_factor}",
                remedy="model.rope_low_factor=1 model.rope_high_factor=4",
            )
        for key in ("capacity_factor", "balance_weight", "router_z_weight"):
            if (value := getattr(self, key)) is not None:
                check_range(f"model.{key}", value, minimum=0)
        if self.capacity_factor == 0:
            raise BadInput(
                "experts without slots would drop all tokens",
                rule="model.capacity_factor is above 0, or none",
                values="model.capacity_factor = 0",
                remedy=("model.capacity_factor=1.25", "model.capacity_factor=None"),
            )
        if self.dropout is not None:
            check_range("model.dropout", self.dropout, minimum=0, upper_bound=1)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """All settings of a network, with nothing left open."""

    image: tuple[int, ...]
    """Rows and columns (and depth, first) of the input it was made for."""
    width: int
    """Channels of the first convolution."""
    classes: int = 1000
    """Outputs of the head."""
    channels: int = 3
    """Channels of an input image."""
    dropout: float = 0.0
    """Share of features dropped before the head."""
    norm: Statistics = "global"
    """Samples that share batch statistics."""
    norm_group: int = 1
    """Neighbouring replicas that share them where it is "replica"."""
    residual: bool = False
    """Whether it has residual blocks that end in a batch norm."""
    zero_gamma: bool = False
    """Whether the scale of that norm starts at zero."""
    aux: bool = False
    """Whether it has its auxiliary heads."""
    aux_after: tuple[str, ...] = ()
    """Blocks behind which auxiliary heads can hang."""

    def scaled(self, features: int, of: int) -> int:
        """Return features in proportion to the width, at least one.

        >>> Preset(image=(32, 32), width=8).scaled(192, of=64)
        24
        """
        return max(1, features * self.width // of)


P = TypeVar("P", bound=Preset)


def resolve_preset(config: ModelConfig, presets: Mapping[str, P]) -> P:
    """Return the preset of the configured size, with what the configuration sets.

    Args:
        config: settings that may be None.
        presets: the network's own settings by `size`.

    Raises:
        BadInput: auxiliary heads or residual blocks of a network that has none.
    """
    preset = presets[config.size]
    if config.zero_gamma and not preset.residual:
        raise BadInput(
            f"{config.name} has no residual blocks with batch norm",
            rule="model.zero_gamma is for networks whose residual blocks end in one",
            values=f"model.name = {config.name}, model.zero_gamma = True",
            remedy="model.zero_gamma=false, or model.name=resnet50",
        )
    if config.aux and not preset.aux_after:
        raise BadInput(
            f"{config.name} has no auxiliary heads",
            rule="model.aux is for networks that were published with such heads",
            values=f"model.name = {config.name}, model.aux = True",
            remedy="model.aux=false, or model.name=googlenet or inception_v3",
        )
    # None leaves a setting to the preset; the others have defaults that are settings.
    fields = ("width", "classes", "channels", "dropout")
    asked = {name: getattr(config, name) for name in fields}
    given = {name: value for name, value in asked.items() if value is not None}
    same = ("norm", "norm_group", "zero_gamma", "aux")
    given |= {name: getattr(config, name) for name in same}
    return replace(preset, **given)
