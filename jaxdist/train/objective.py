"""An objective: what a network is called on, and what its outputs are scored against.

Everything is a sample's own: a loss is a mean within one sample, so that the global
loss stays a mean over samples however they lie on devices.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxdist.core.axes import spatial_axes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.special_tokens import PAD_ID
from jaxdist.train.logits import UnsplitLogits, VocabLogits, VocabParallelLogits

Batch = Mapping[str, jax.Array]
BatchKeys = tuple[tuple[str, str], ...]
"""Keys of a batch, each with its dtype."""


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """One way to score a network; `B` is the samples of the batch at hand."""

    inputs: BatchKeys
    """What the network is called on, in this order."""
    targets: BatchKeys
    """What its outputs are scored against."""

    @property
    def dtypes(self) -> dict[str, str]:
        """Dtype of every key a sample needs.

        >>> NextToken().dtypes
        {'tokens': 'int32', 'target': 'int32'}
        """
        return dict((*self.inputs, *self.targets))

    def model_inputs(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arrays, or shapes, that the network is called on."""
        return tuple(batch[key] for key, _ in self.inputs)

    def dim_axes(self, key: str, rank: int) -> tuple[str | None, ...]:
        """Name the axis that splits each dim of an array behind its samples.

        Args:
            key: of the batch.
            rank: number of dims of the array, samples and channels included.

        Returns:
            An axis a dim, None where it stays whole, as do the dims behind the last.
        """
        return spatial_axes(rank)

    def target_mask(self, correct: jax.Array, batch: Batch) -> jax.Array:
        """Return which of the answers of `correct` count, bool [B, ...]: here all."""
        return jnp.ones_like(correct)

    def for_vocab_parallel(self) -> "Objective":
        """Return the same of outputs that lie in slices over the tensor axis.

        Raises:
            BadInput: the outputs are no logits of one vocabulary.
        """
        raise BadInput(
            f"{type(self).__name__} cannot score outputs that lie in slices",
            rule="Answers are the logits of one vocabulary",
            values=f"the network declares them, {type(self).__name__} scores it",
            remedy="plan.weights=filter, or a network without Answers",
        )

    @abstractmethod
    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the loss of each sample, [B], in float32 or wider."""

    @abstractmethod
    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return which answers are right, bool [B, ...]: one or several a sample."""


@dataclass(frozen=True, kw_only=True)
class Classification(Objective):
    """One label a sample, from logits [B, classes].

    In a tuple of logits the first are the network's, and those of its auxiliary heads,
    which take part in training alone, follow (Szegedy et al. 2014, section 5).
    """

    inputs: BatchKeys = (("image", "float32"),)
    targets: BatchKeys = (("label", "int32"),)
    aux_weight: float = 0.3
    """Weight of an auxiliary head's loss."""

    def losses(
        self, outputs: jax.Array | tuple[jax.Array, ...], batch: Batch
    ) -> jax.Array:
        """Return the cross entropy of each sample, [B], nats."""
        if isinstance(outputs, tuple):
            main, *others = (self.losses(each, batch) for each in outputs)
            return main + self.aux_weight * sum(others)
        return UnsplitLogits().cross_entropy(outputs, batch["label"])

    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return whether each sample's largest logit is its label, bool [B]."""
        return outputs.argmax(-1) == batch["label"]


@dataclass(frozen=True, kw_only=True)
class NextToken(Objective):
    """A label a token: the one that follows, from logits [B, T, vocabulary]."""

    inputs: BatchKeys = (("tokens", "int32"),)
    targets: BatchKeys = (("target", "int32"),)
    logits: VocabLogits = field(default_factory=UnsplitLogits)
    """Reads the logits as they lie."""

    def for_vocab_parallel(self) -> Self:
        """Return the same of slices of the vocabulary."""
        return replace(self, logits=VocabParallelLogits())

    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the mean cross entropy over each sample's tokens, [B], nats."""
        return self.logits.cross_entropy(outputs, batch["target"]).mean(-1)

    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return whether each token's largest logit is its target, bool [B, T]."""
        return self.logits.argmax(outputs) == batch["target"]


@dataclass(frozen=True, kw_only=True)
class Regression(Objective):
    """Several numbers a sample, from estimates [B, n]."""

    inputs: BatchKeys = (("image", "float32"),)
    targets: BatchKeys = (("target", "float32"),)
    tolerance: float = 0.1
    """An estimate this near to its target counts as right."""

    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the mean squared error over each sample's numbers, [B]."""
        return (self._errors(outputs, batch) ** 2).mean(-1)

    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return whether each estimate is within the tolerance, bool [B, n]."""
        return abs(self._errors(outputs, batch)) <= self.tolerance

    def _errors(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return estimates less targets, [B, n], in float32 or wider."""
        dtype = accumulation_dtype(outputs.dtype)
        return outputs.astype(dtype) - batch["target"].astype(dtype)


@dataclass(frozen=True, kw_only=True)
class Captioning(Objective):
    """A label a word of a caption: the next one, from logits [B, L, vocabulary].

    `words` are the caption with `BEGIN` before it, `target` the caption with `END`
    behind it; both are filled up with `PAD_ID`, which nothing is asked for.
    """

    inputs: BatchKeys = (("clip", "float32"), ("words", "int32"))
    targets: BatchKeys = (("target", "int32"),)
    logits: VocabLogits = field(default_factory=UnsplitLogits)
    """Reads the logits as they lie."""

    def for_vocab_parallel(self) -> Self:
        """Return the same of slices of the vocabulary."""
        return replace(self, logits=VocabParallelLogits())

    def dim_axes(self, key: str, rank: int) -> tuple[str | None, ...]:
        """Name the axes: each frame of a clip [B, T, H, W, C] is split as an image."""
        return (None, *spatial_axes(rank - 1)) if key == "clip" else ()

    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the mean cross entropy over each caption's words, [B], nats."""
        each = self.logits.cross_entropy(outputs, batch["target"])
        asked = _is_word(batch).astype(each.dtype)
        return (each * asked).sum(-1) / jnp.maximum(asked.sum(-1), 1)

    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return whether each word's largest logit is its target, bool [B, L]."""
        return self.logits.argmax(outputs) == batch["target"]

    def target_mask(self, correct: jax.Array, batch: Batch) -> jax.Array:
        """Return which targets are a word or the end, bool [B, L]."""
        return _is_word(batch)


def cast_floats(arrays: Any, dtype: Any) -> Any:
    """Cast the floats among arrays or shapes; None leaves everything as it is.

    >>> [x.dtype.name for x in cast_floats((jnp.ones(2), jnp.arange(2)), "bfloat16")]
    ['bfloat16', 'int32']
    """

    def one(x: Any) -> Any:
        if dtype is None or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        if isinstance(x, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(x.shape, dtype)
        return x.astype(dtype)

    return jax.tree.map(one, arrays)


def _is_word(batch: Batch) -> jax.Array:
    return batch["target"] != PAD_ID
