"""A Transformer by its sizes, and how a run splits it over devices."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxdist.core.errors import BadInput

Recompute = Literal["none", "selective", "full"]
"""What a backward pass computes again: nothing, the core of attention, or layers."""


@dataclass(frozen=True, kw_only=True)
class MegatronModel:
    """Layers of attention and a feed-forward part, between an embedding and a head."""

    hidden: int
    """h, features of a token."""
    heads: int
    """a, of attention."""
    layers: int
    """L."""
    sequence: int
    """s, tokens of a sample."""
    vocabulary: int
    """V, tokens that there are; the head has as many outputs."""
    feedforward: int
    """f, features inside the feed-forward part; 4 h in GPT."""
    head_size: int
    """d, features of a head; h / a in GPT."""

    @property
    def attention_width(self) -> int:
        """Return a d, features of all heads together."""
        return self.heads * self.head_size

    def layer_parameters(self, tensor: int = 1) -> float:
        """Return the parameters of a layer that one of `tensor` devices has.

        4 h (a d) + 2 h f in weights, which are split; of the biases those of outputs
        that are split, too. Norms and the other biases are on every device.
        """
        h, wide = self.hidden, self.attention_width
        # Column-parallel matrices split their bias with their outputs; row-parallel
        # ones have it whole.
        split = 4 * h * wide + 2 * h * self.feedforward + 3 * wide + self.feedforward
        return split / tensor + 6 * h

    def embedding_parameters(self, tensor: int = 1) -> float:
        """Return those of the embedding, V / tensor rows, and of s positions."""
        return (self.vocabulary / tensor + self.sequence) * self.hidden

    def flops(self, batch: int, *, recompute: bool = False) -> float:
        """Return the FLOPs of a step on a batch: matmuls, forward and backward.

        72 B s L h^2 (1 + s / 6h + V / 12 L h) for GPT (Narayanan et al. 2021,
        arXiv 2104.04473, with no recomputation); `recompute` adds a forward pass of the
        layers.
        """
        h, wide, s = self.hidden, self.attention_width, self.sequence
        # Attention scores and their product with values add 2 s a d each for a token.
        layer = 2 * s * (4 * h * wide + 2 * h * self.feedforward + 2 * s * wide)
        head = 2 * s * h * self.vocabulary
        return batch * ((4 if recompute else 3) * self.layers * layer + 3 * head)


@dataclass(frozen=True, kw_only=True)
class MegatronLayout:
    """How a step is split: ranks go along tensor first, then data, then pipe."""

    tensor: int
    """t, devices that share each layer."""
    data: int
    """d, replicas."""
    pipe: int
    """p, stages."""
    batch: int
    """Samples of a step, of all replicas."""
    microbatch: int
    """b, samples that go through the stages together."""
    chunks: int = 1
    """v, pieces of the network on each device, placed round robin (interleaved)."""
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    """Norms and dropout are split over the sequence, among the t devices."""
    stage_layers: tuple[int, ...] = ()
    """Layers of each stage where they are not alike; empty: L / p each."""

    def __post_init__(self) -> None:
        if self.stage_layers and (
            len(self.stage_layers) != self.pipe * self.chunks or self.chunks > 1
        ):
            raise BadInput(
                f"{len(self.stage_layers)} stages are not {self.pipe}",
                rule="stages that are not alike are one for each device of pipe",
                values=f"layers of stages {self.stage_layers}, pipe {self.pipe}, "
                f"chunks {self.chunks}",
                remedy=f"{self.pipe - 1} cuts",
            )
        # Replicas and their microbatches divide the batch without a rest, as Megatron
        # requires.
        share = self.data * self.microbatch
        if self.batch % share:
            raise BadInput(
                f"a batch of {self.batch:,} makes no whole microbatches",
                rule="replicas x samples of a microbatch divide the batch",
                values=f"{self.data} x {self.microbatch} = {share}",
                remedy=f"a batch of {share * max(1, round(self.batch / share))}",
            )

    @property
    def devices(self) -> int:
        """Return t d p."""
        return self.tensor * self.data * self.pipe

    def layers_of_stages(self, layers: int) -> tuple[float, ...]:
        """Return the layers that the devices of each of p stages have.

        Args:
            layers: L, of the network.
        """
        return self.stage_layers or (layers / self.pipe,) * self.pipe

    @cached_property
    def microbatches(self) -> int:
        """Return m, those of one replica."""
        return self.batch // (self.data * self.microbatch)
