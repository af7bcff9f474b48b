"""A profile: what a network costs, layer by layer, and where it may be cut."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from jaxdist.core.kernel_shape import KernelShape
from jaxdist.core.validation import json_text, parse_json


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """One layer: what it keeps, and what it does to one batch in one training step.

    FLOPs are floating-point operations (a multiplication and an addition are two) on
    the whole batch of the profile, counted as XLA counts them: no taps on padding, no
    transcendental functions.
    """

    name: str
    """Path in the network: `block1.conv2`."""
    kind: str
    """Name of its class."""
    block: str = ""
    """The block it belongs to; empty where the network is no chain."""
    parameters: int = 0
    """Trainable numbers it holds itself."""
    parameter_bytes: int = 0
    """Their bytes."""
    state_bytes: int = 0
    """Bytes of its running statistics."""
    flops_forward: int = 0
    """FLOPs of the forward pass, of its own: what layers inside it do is theirs."""
    flops_backward: int = 0
    """FLOPs that the backward pass adds, recomputation included."""
    output_bytes: int = 0
    """Bytes of the activations it makes for the batch, over all its uses."""
    inner_bytes: int = 0
    """Bytes inside of it that its backward pass reads: the weights of attention."""
    input_bytes: int = 0
    """Bytes of activations that its convolutions read."""
    weights: tuple[int, ...] = ()
    """Shape of its largest array of weights."""
    seconds_forward: float | None = None
    """Measured seconds of the forward pass; None until measured."""
    seconds_backward: float | None = None
    """Measured seconds of the backward pass; None until measured."""

    @property
    def flops(self) -> int:
        """FLOPs of forward and backward pass."""
        return self.flops_forward + self.flops_backward

    @cached_property
    def unnamed(self) -> "LayerProfile":
        """The layer without its place: layers of equal numbers have equal ones."""
        return replace(self, name="", block="")

    # The oracle asks each layer for it under every plan.
    @cached_property
    def kernel(self) -> KernelShape | None:
        """What its forward pass computes, where that is a product with its weights.

        >>> sizes = {"weights": (64, 10), "flops_forward": 20480}
        >>> row = LayerProfile(name="a", kind="Linear", **sizes)
        >>> row.kernel.uses, row.kernel.inputs
        (16.0, 64)
        """
        if len(self.weights) < 2 or not self.flops_forward:
            return None
        # Weights are [taps..., inputs, outputs]; FLOPs tell how often each is used.
        *taps, inputs, outputs = self.weights
        if self.kind.endswith("Embed"):
            # Tied to the logits, a table multiplies features by its transpose.
            inputs, outputs = outputs, inputs
        # Other layers with several leading dims (heads) are one product over them.
        spread = self.kind.endswith(("Conv", "ConvTranspose"))
        reads = 1.0
        if self.kind.endswith("Conv") and self.input_bytes and self.output_bytes:
            # Positions that are read over those that are written: each has as many
            # numbers as features.
            reads = self.input_bytes / inputs * outputs / self.output_bytes
        return KernelShape(
            kind="convolution" if spread else "product",
            taps=prod(taps) if spread else 1,
            uses=self.flops_forward / 2 / prod(self.weights),
            inputs=inputs if spread else prod(taps) * inputs,
            outputs=outputs,
            reads=reads,
        )


@dataclass(frozen=True, kw_only=True)
class BlockProfile(LayerProfile):
    """One block of the chain: its layers together.

    Here `output_bytes` is what the block hands to the next one, for the whole batch.
    """

    cut_after: bool = False
    """Whether the network may be cut after it."""
    passed_bytes: int = 0
    """Bytes of its output that it was handed and hands on as they are, such as skips
    that later blocks read."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one training step of a network costs on one device, before any split."""

    model: str
    """Name of the network."""
    inputs: tuple[str, ...]
    """What it was read on, the batch first: `float32[8,224,224,3]`."""
    batch: int
    """Samples in the batch that FLOPs and bytes are of."""
    layers: tuple[LayerProfile, ...]
    """In the order they run; each FLOP, parameter and byte is in one row alone."""
    blocks: tuple[BlockProfile, ...] = ()
    """In the order of the chain; empty where the network is no chain."""
    note: str = ""
    """Why it may not be cut, where it may not: `none: ...`."""
    padding_flops: int = 0
    """FLOPs of rows that stand for no token, as empty slots of experts are; they are
    in those of the layers."""

    @property
    def parameters(self) -> int:
        """Trainable numbers in the network."""
        return sum(row.parameters for row in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of its parameters."""
        return sum(row.parameter_bytes for row in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of its running statistics."""
        return sum(row.state_bytes for row in self.layers)

    @property
    def output_bytes(self) -> int:
        """Bytes of all activations of the batch."""
        return sum(row.output_bytes for row in self.layers)

    @property
    def flops_forward(self) -> int:
        """FLOPs of the forward pass, whole batch."""
        return sum(row.flops_forward for row in self.layers)

    @property
    def flops_backward(self) -> int:
        """FLOPs of the backward pass, whole batch."""
        return sum(row.flops_backward for row in self.layers)

    @property
    def flops(self) -> int:
        """FLOPs of forward and backward pass, whole batch."""
        return self.flops_forward + self.flops_backward

    @property
    def model_flops(self) -> int:
        """FLOPs of a step that MFU counts: those of `flops` but for padding."""
        return self.flops - self.padding_flops

    def ideal_seconds(self, devices: int, peak: float) -> float:
        """Return the seconds of a step in which nothing but its FLOPs takes time.

        Over those of a step this is the model FLOPs utilisation (MFU; Chowdhery et al.
        2022, arXiv:2204.02311, appendix B): rematerialization adds to neither.

        Args:
            devices: that share the work.
            peak: FLOPs a second of each.
        """
        return self.model_flops / (devices * peak)

    @property
    def cuts(self) -> tuple[str, ...]:
        """The blocks after which the network may be cut."""
        return tuple(block.name for block in self.blocks if block.cut_after)

    @cached_property
    def layer_by_name(self) -> dict[str, LayerProfile]:
        """The layers, by their paths."""
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def equal_blocks(self) -> dict[str, str]:
        """The first block with equal layers, but for their names, by each block."""
        forms = {block.name: [("", block.unnamed)] for block in self.blocks}
        for layer in self.layers:
            if layer.block in forms:
                inner = layer.name.removeprefix(layer.block)
                forms[layer.block].append((inner, layer.unnamed))
        first: dict[Any, str] = {}
        return {name: first.setdefault(tuple(x), name) for name, x in forms.items()}

    def layers_of(self, block: str) -> tuple[LayerProfile, ...]:
        """Return the layers of a block; the last one has those of no block as well.

        Args:
            block: its name.
        """
        # So that the layers of all blocks are those of the network.
        last = bool(self.blocks) and block == self.blocks[-1].name
        return tuple(
            x for x in self.layers if x.block == block or (last and not x.block)
        )

    def tree(self) -> dict[str, Any]:
        """Return the profile as plain values, totals first."""
        sums = ("parameters", "parameter_bytes", "state_bytes", "output_bytes")
        work = ("flops", "flops_forward", "flops_backward")
        totals = {name: getattr(self, name) for name in (*sums, *work)}
        return {"model": self.model, **totals, "cuts": self.cuts, **asdict(self)}

    def to_json(self) -> str:
        """Write the profile and its totals; `from_json` reads the same value back."""
        return json_text(self.tree(), indent=2, ascii_only=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """Read a profile that `to_json` wrote; totals are summed again."""
        tree = parse_json(text)
        for row in (*tree["layers"], *tree["blocks"]):
            row["weights"] = tuple(row.get("weights", ()))
        return cls(
            padding_flops=tree.get("padding_flops", 0),
            model=tree["model"],
            inputs=tuple(tree["inputs"]),
            batch=tree["batch"],
            layers=tuple(LayerProfile(**row) for row in tree["layers"]),
            blocks=tuple(BlockProfile(**row) for row in tree["blocks"]),
            note=tree["note"],
        )
