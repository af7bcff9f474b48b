"""What a network declares of its blocks, besides how to call them.

None of it is about devices: it says which layers work on each feature by itself, and
so where features can be sharded without another collective.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SingleLayerBlock:
    """A block of one layer with weights, around which each feature is by itself."""

    weights: str
    """Attribute of the layer with weights."""
    before: tuple[str, ...] = ()
    """Attributes of the layers that work on its input."""
    behind: tuple[str, ...] = ()
    """Attributes of the layers that work on its output."""


@dataclass(frozen=True, kw_only=True)
class ResidualStream:
    """A path of tokens on which each is by itself, between layers that mix them."""

    start: tuple[str, ...]
    """Paths of the tables it begins with."""
    along: tuple[str, ...]
    """Paths of the layers on it, behind which it goes on."""
    ends: tuple[str, ...]
    """Paths of the last layers on it before tokens or features are mixed: norms."""


@dataclass(frozen=True, kw_only=True)
class LogitsLayer:
    """The layer whose outputs are a network's logits, one for each of a vocabulary."""

    layer: str
    """Path of the layer."""
    method: str = "__call__"
    """What of it is called: `attend` of a table."""
    is_output: bool = False
    """Whether the network returns them as they are, so that a loss may multiply them
    out for some tokens at a time."""


@dataclass(frozen=True, kw_only=True)
class ColumnRowPair:
    """Layers whose features are mixed again by one later layer, and only by it."""

    first: tuple[str, ...]
    """Paths of the layers that make the features."""
    last: str
    """Path of the layer that mixes them."""
    inner: tuple[str, ...] = ()
    """Paths of the layers between that work on each feature by itself."""
    unit: int = 1
    """Features that stay together: those of one head."""

    def under(self, path: str) -> "ColumnRowPair":
        """Return the pair as seen from outside the module at a path.

        >>> ColumnRowPair(first=("conv1",), last="conv2").under("block3").last
        'block3.conv2'
        """
        at = f"{path}." if path else ""
        return ColumnRowPair(
            first=tuple(at + name for name in self.first),
            last=at + self.last,
            inner=tuple(at + name for name in self.inner),
            unit=self.unit,
        )


@dataclass(frozen=True, kw_only=True)
class AttentionInputs:
    """The layers whose outputs causal attention reads; all else is token by token.

    A module that declares them as `attends` calls `causal_attention` on them, and
    tokens of its network see each other nowhere else.
    """

    query: str
    """Path of the layer of queries."""
    key: str
    """Path of the layer of keys."""
    value: str
    """Path of the layer of values."""
    features: int
    """Features of one head."""

    def under(self, path: str) -> "AttentionInputs":
        """Return the same as seen from outside the module at a path.

        >>> own = AttentionInputs(query="q", key="k", value="v", features=8)
        >>> own.under("block3.attention").key
        'block3.attention.k'
        """
        at = f"{path}." if path else ""
        return AttentionInputs(
            query=at + self.query,
            key=at + self.key,
            value=at + self.value,
            features=self.features,
        )
