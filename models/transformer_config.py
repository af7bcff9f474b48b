"""Sizes of a Transformer, and which of them divide which."""

from dataclasses import dataclass

from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a Transformer."""

    vocabulary: int
    """Distinct tokens."""
    context: int
    """Most tokens of a sample."""
    depth: int
    """Blocks."""
    heads: int
    """Attention heads."""
    kv_heads: int
    """Heads of keys and values, `heads` a multiple of it."""
    embed: int
    """Features of a token, a multiple of `heads`."""
    hidden: int
    """Features inside the feed-forward part."""

    def __post_init__(self) -> None:
        # Twice the heads: rotary positions turn features in pairs.
        pairs = 2 * self.heads
        if self.embed % pairs:
            raise BadInput(
                "a token's features do not divide over the heads",
                rule="model.embed is a multiple of 2 x model.heads",
                values=f"model.embed = {self.embed}, model.heads = {self.heads}",
                remedy=f"model.embed={max(round(self.embed / pairs), 1) * pairs}",
            )
        if self.heads % self.kv_heads:
            fitting = (n for n in range(1, self.heads) if self.heads % n == 0)
            near = min(fitting, key=lambda n: abs(n - self.kv_heads))
            raise BadInput(
                "the heads do not divide over those of keys and values",
                rule="model.heads is a multiple of model.kv_heads",
                values=f"model.heads = {self.heads}, model.kv_heads = {self.kv_heads}",
                remedy=f"model.kv_heads={near}",
            )

    @property
    def head(self) -> int:
        """Features of one head."""
        return self.embed // self.heads
