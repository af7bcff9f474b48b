"""Objectives: the inputs of a network, and the targets and loss of its outputs.

Everything is per sample: a loss is a mean within one sample, so that the global loss
stays a mean over samples however they are sharded.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.core.axes import CONTEXT_AXIS, spatial_axes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.special_tokens import PAD_ID
from jaxdist.layers.logits_product import LogitsProduct
from jaxdist.layers.token_order import (
    context_devices,
    gather_whole_tokens,
    local_tokens,
)
from jaxdist.partition.traffic import PlannedCollective, nontrivial_axes
from jaxdist.train.count_words import count_true, count_words
from jaxdist.train.logits import (
    Logits,
    UnsplitLogits,
    VocabLogits,
    VocabParallelLogits,
    by_chunks,
    weighted_cross_entropy,
)

Batch = Mapping[str, jax.Array]
BatchKeys = tuple[tuple[str, str], ...]
"""Keys of a batch, with dtypes."""
_TARGET_COUNT: Final = "target_count"
"""Key of how many targets of a whole sample count, where devices have some of them."""


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """Inputs, targets and loss of a network; `B` is the samples of a batch."""

    inputs: BatchKeys
    """Inputs of the network, in order."""
    targets: BatchKeys
    """Targets of its outputs."""

    @property
    def has_answers(self) -> bool:
        """Whether `correct` says anything: an accuracy is reported."""
        return True

    @property
    def dtypes(self) -> dict[str, str]:
        """Dtype of every key a sample needs.

        >>> NextToken().dtypes
        {'tokens': 'int32', 'target': 'int32'}
        """
        return dict((*self.inputs, *self.targets))

    def model_inputs(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the network's inputs, arrays or shapes."""
        return tuple(batch[key] for key, _ in self.inputs)

    def dim_axes(self, key: str, rank: int) -> tuple[str | None, ...]:
        """Return the mesh axis that splits each dim of an array after the samples.

        Args:
            key: key of the array in the batch.
            rank: number of dims of the array, samples and channels included.

        Returns:
            An axis a dim, None for dims that stay whole; so do dims after the last.
        """
        return spatial_axes(rank)

    def local_batch(self, batch: Batch) -> Batch:
        """Return this device's samples as networks and losses take them.

        Args:
            batch: cut over devices as `dim_axes` says, in the order of the arrays.
        """
        return batch

    def batch_traffic(
        self, plan: Plan, shapes: Mapping[str, Any]
    ) -> Iterable[PlannedCollective]:
        """Return what `local_batch` moves in a step.

        Args:
            plan: the layout.
            shapes: of a global batch.
        """
        return ()

    def target_mask(self, correct: jax.Array, batch: Batch) -> jax.Array:
        """Return which elements of `correct` count, bool [B, ...]: here all."""
        return jnp.ones_like(correct)

    def answer_sums(
        self, outputs: Any, batch: Batch, is_real: jax.Array
    ) -> dict[str, jax.Array]:
        """Return `correct` and `answers` of the batch, and sums for `scores`.

        Whole numbers are two words, as of `count_words`; real ones are plain sums.

        Args:
            outputs: what the network returned.
            batch: the targets.
            is_real: which samples count, bool [B].
        """
        if not self.has_answers:
            return {}
        correct = self.correct(outputs, batch)
        # A sample may have several answers, such as one a token.
        real = is_real.reshape(-1, *(1,) * (correct.ndim - 1))
        counted = self.target_mask(correct, batch) & real
        return {
            "correct": count_true(correct & counted),
            "answers": count_true(counted),
        }

    def loss_sums(
        self, losses: jax.Array, batch: Batch, is_real: jax.Array
    ) -> dict[str, jax.Array]:
        """Return arrays of sums for `scores` that are made of the losses: here none.

        Args:
            losses: of each sample, [B].
            batch: the targets.
            is_real: which samples count, bool [B].
        """
        return {}

    @property
    def is_dense(self) -> bool:
        """Whether outputs have a row for each row of an image, and are cut as it is."""
        return False

    @property
    def score_names(self) -> tuple[str, ...]:
        """Scores that every evaluation has besides loss and accuracy."""
        return ()

    def scores(self, sums: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
        """Return scores that are no means, from sums over all held-out samples."""
        return {}

    def pixel_sums(self, outputs: Any, batch: Batch) -> jax.Array:
        """Return what the loss of an image sums over its pixels, [B, n].

        Images in parts are scored by it: the sums of parts are added.

        Raises:
            BadInput: the loss is not made of such sums.
        """
        raise self._whole_images_error()

    def losses_of_sums(self, totals: jax.Array, channels: int) -> jax.Array:
        """Return the loss of each image, [B], from sums over all of its pixels.

        Args:
            totals: the sums of `pixel_sums`, added over parts.
            channels: those of the outputs.

        Raises:
            BadInput: the loss is not made of such sums.
        """
        raise self._whole_images_error()

    def _whole_images_error(self) -> BadInput:
        return BadInput(
            f"{type(self).__name__} cannot score images in parts",
            rule="evaluation by windows wants a loss of sums over pixels",
            values=f"the loss is that of {type(self).__name__}",
            remedy="jaxdist.Segmentation, or an evaluation without a window",
        )

    def on_blocks(self, plan: Plan, shapes: Mapping[str, Any]) -> "Objective":
        """Return the objective of the blocks that a plan makes of outputs.

        Args:
            plan: the layout.
            shapes: of a batch.
        """
        return self

    def loss_traffic(
        self, plan: Plan, outputs: Any, parts: int
    ) -> Iterable[PlannedCollective]:
        """Return what devices add of the loss of outputs that are split.

        Args:
            plan: the layout.
            outputs: shapes of what the network returns, of the samples that a device
                group takes at once.
            parts: how often a step does.
        """
        return ()

    def for_vocab_parallel(self) -> "Objective":
        """Return the objective of logits that are sliced over the tensor axis.

        Raises:
            BadInput: the outputs are not the logits of one vocabulary.
        """
        raise BadInput(
            f"{type(self).__name__} cannot score outputs that lie in slices",
            rule="a LogitsLayer makes the logits of one vocabulary",
            values=f"the network declares one, {type(self).__name__} scores it",
            remedy="plan.tensor_strategy=filter, or a network without `answers`",
        )

    @property
    def takes_product(self) -> bool:
        """Whether the logits that are scored may be a `LogitsProduct`."""
        return False

    def mean_loss(self, outputs: Any, batch: Batch) -> jax.Array:
        """Return the mean of the samples' losses, in float32 or wider."""
        return self.losses(outputs, batch).mean()

    def check_outputs(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Hold what a network returns against the targets; nothing is computed.

        Args:
            outputs: shapes of what the network returns, samples first.
            batch: shapes of the batch.

        Raises:
            BadInput: the loss is not one number a sample, or an answer is not one of a
                sample.
        """
        samples = next(iter(batch.values())).shape[0]
        try:
            found = [("losses", jax.eval_shape(self.losses, outputs, batch).shape)]
            # Heads beside the network's own are there in training alone. Whether places
            # are counted in 32 or 64 bits does not matter here.
            if not isinstance(outputs, tuple):
                with jax.numpy_dtype_promotion("standard"):
                    right = jax.eval_shape(self.correct, outputs, batch)
                found.append(("correct", right.shape[:1]))
        except BadInput:
            raise
        except Exception as error:  # an objective of one's own may raise anything
            shown = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise self._mismatch_error(outputs, batch, shown) from error
        for method, shape in found:
            if shape != (samples,):
                shown = f"{method} of {samples} samples are {list(shape)}"
                raise self._mismatch_error(outputs, batch, shown)

    def _mismatch_error(
        self, outputs: Any, batch: Mapping[str, Any], values: str
    ) -> BadInput:
        shown = [f"the network returns {describe_samples(outputs)} a sample"]
        shown += [f"{key} is {describe_samples(batch[key])}" for key, _ in self.targets]
        return BadInput(
            f"{type(self).__name__} cannot score what the network returns",
            rule="an objective has one loss a sample, [B], and answers [B, ...]",
            values=f"{', '.join(shown)}; {values}",
            remedy="another objective of the network, or targets of its outputs' form",
        )

    @abstractmethod
    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the loss of each sample, [B], in float32 or wider."""

    @abstractmethod
    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return which answers are right, bool [B, ...], one or several a sample."""


@dataclass(frozen=True, kw_only=True)
class Classification(Objective):
    """One label a sample, from logits [B, classes]."""

    inputs: BatchKeys = (("image", "float32"),)
    targets: BatchKeys = (("label", "int32"),)
    aux_weight: float = 0.3
    """Weight of an auxiliary head's loss."""

    def losses(
        self, outputs: jax.Array | tuple[jax.Array, ...], batch: Batch
    ) -> jax.Array:
        """Return the cross entropy of each sample, [B], nats."""
        # In training a network may return the logits of auxiliary heads after its own
        # (Szegedy et al. 2014, section 5).
        if isinstance(outputs, tuple):
            main, *others = (self.losses(each, batch) for each in outputs)
            return main + self.aux_weight * sum(others)
        _check_labels(outputs, "label", batch["label"])
        return UnsplitLogits().cross_entropy(outputs, batch["label"])

    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return whether each sample's largest logit is its label, bool [B]."""
        _check_labels(outputs, "label", batch["label"])
        return outputs.argmax(-1) == batch["label"]


@dataclass(frozen=True, kw_only=True)
class NextToken(Objective):
    """The next token at every place, from logits [B, T, vocabulary]."""

    inputs: BatchKeys = (("tokens", "int32"),)
    targets: BatchKeys = (("target", "int32"),)
    logits: VocabLogits = field(default_factory=UnsplitLogits)
    """Loss and argmax of the logits, whole or sliced."""
    ignore_value: int = -100
    """A target with this number counts for nothing."""

    def for_vocab_parallel(self) -> Self:
        """Return the objective of sliced logits."""
        return replace(self, logits=VocabParallelLogits())

    @property
    def takes_product(self) -> bool:
        """Whether logits may be a product: not where a subclass scores them itself."""
        own, methods = type(self), ("losses", "correct", "mean_loss")
        return all(getattr(own, x) is getattr(NextToken, x) for x in methods)

    @property
    def whole_keys(self) -> tuple[str, ...]:
        """Keys that each device has of all tokens, where several share a sample's."""
        return ()

    def dim_axes(self, key: str, rank: int) -> tuple[str | None, ...]:
        """Name the axes: several devices may have the tokens of a sample."""
        # A subclass with a loss of its own is written for whole samples.
        is_tokens = rank == 2 and key in self.dtypes and self.takes_product
        return (CONTEXT_AXIS,) if is_tokens else super().dim_axes(key, rank)

    def local_batch(self, batch: Batch) -> Batch:
        """Deal out tokens zig-zag, where several devices have those of a sample."""
        if context_devices() == 1:
            return batch
        # On the devices, so that batches have one order everywhere; token ids are few
        # bytes beside what attention moves.
        keys = [key for key, x in batch.items() if self.dim_axes(key, x.ndim)]
        whole = dict(batch) | {key: gather_whole_tokens(batch[key]) for key in keys}
        # Of whole samples, before they are cut: a device sees a part of the targets.
        counts = self.target_mask(whole["target"], whole).sum(-1, dtype=jnp.int32)
        cut = {
            key: local_tokens(whole[key], 1)
            for key in keys
            if key not in self.whole_keys
        }
        return {**whole, **cut, _TARGET_COUNT: counts}

    def batch_traffic(
        self, plan: Plan, shapes: Mapping[str, Any]
    ) -> Iterator[PlannedCollective]:
        """Yield the all-gather of tokens and targets that several devices have.

        Args:
            plan: the layout.
            shapes: of a global batch.
        """
        keys = [key for key, x in shapes.items() if self.dim_axes(key, len(x.shape))]
        if axes := nontrivial_axes(plan, (CONTEXT_AXIS,)):
            sizes = [
                math.prod(shapes[k].shape) * shapes[k].dtype.itemsize for k in keys
            ]
            yield PlannedCollective(
                what="tokens",
                kind="all-gather",
                axes=axes,
                payload=sum(sizes) // plan.batch_shards,
                layer="local_batch",
                arrays=len(keys),
            )

    def losses(self, outputs: Logits, batch: Batch) -> jax.Array:
        """Return the mean cross entropy over each sample's tokens, [B], nats.

        Over those that count; 0 for a sample that has none.
        """
        own = self._local_losses(outputs, batch)
        # Each device has divided by the count of the whole sample, so parts add up.
        return lax.psum(own, CONTEXT_AXIS) if context_devices() > 1 else own

    def _local_losses(self, outputs: Logits, batch: Batch) -> jax.Array:
        """Return what this device's tokens add to the loss of each sample, [B]."""
        counts, labels = self._labels(outputs, batch)
        each = by_chunks(self.logits.cross_entropy, outputs, labels)
        each = jnp.where(counts, each, jnp.zeros_like(each))
        # Exactly 1 where all count: the bits are those of a plain mean.
        number = _target_count(counts, batch).astype(each.dtype)
        return each.mean(-1) * (jnp.full_like(number, counts.shape[-1]) / number)

    def mean_loss(self, outputs: Logits, batch: Batch) -> jax.Array:
        """Return the mean of the samples' losses, in float32 or wider.

        Where several devices have the tokens of a sample: this device's share of it, of
        which they take the mean.
        """
        if not self.takes_product:
            return super().mean_loss(outputs, batch)
        devices = context_devices()
        if not isinstance(outputs, LogitsProduct):
            # Not added over devices: the sum of their shares of the loss does it,
            # without a collective of its own.
            return self._local_losses(outputs, batch).mean() * devices
        counts, labels = self._labels(outputs, batch)
        dtype = accumulation_dtype(outputs.features.dtype)
        # Targets of the sample times samples, [B, 1].
        number = _target_count(counts, batch)[:, None] * counts.shape[0]
        weights = counts.astype(dtype) / number.astype(dtype) * devices
        return weighted_cross_entropy(self.logits, outputs, labels, weights)

    def answer_sums(
        self, outputs: Logits, batch: Batch, is_real: jax.Array
    ) -> dict[str, jax.Array]:
        """Return `correct` and `answers` of whole samples of the batch.

        Args:
            outputs: logits.
            batch: the targets.
            is_real: which samples count, bool [B].
        """
        found = super().answer_sums(outputs, batch, is_real)
        return lax.psum(found, CONTEXT_AXIS) if context_devices() > 1 else found

    def _labels(self, outputs: Logits, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return which targets count, bool [B, T], and targets, with 0 for others."""
        _check_labels(outputs, "target", batch["target"])
        counts = self.target_mask(batch["target"], batch)
        return counts, jnp.where(
            counts, batch["target"], jnp.zeros_like(batch["target"])
        )

    def correct(self, outputs: Logits, batch: Batch) -> jax.Array:
        """Return whether each token's largest logit is its target, bool [B, T]."""
        _check_labels(outputs, "target", batch["target"])
        return by_chunks(self.logits.argmax, outputs) == batch["target"]

    def target_mask(self, correct: jax.Array, batch: Batch) -> jax.Array:
        """Return which targets count, bool [B, T]."""
        return batch["target"] != self.ignore_value


@dataclass(frozen=True, kw_only=True)
class PackedNextToken(NextToken):
    """The next token of documents that share windows; each is told from its own alone.

    `segments` says where in the window the document of each token begins, `bytes` of
    how many bytes the documents are that end in a window.
    """

    inputs: BatchKeys = (("tokens", "int32"), ("segments", "int32"))
    targets: BatchKeys = (("target", "int32"), ("bytes", "int32"))

    @property
    def whole_keys(self) -> tuple[str, ...]:
        """Segments: a token's are held against those of keys on other devices."""
        return ("segments",)

    def loss_sums(
        self, losses: jax.Array, batch: Batch, is_real: jax.Array
    ) -> dict[str, jax.Array]:
        """Return the nats of all tokens, their number, and the bytes of text, [1]."""
        # Losses are of whole windows, so their tokens are, too.
        tokens = batch.get(_TARGET_COUNT)
        if tokens is None:
            tokens = self.target_mask(batch["target"], batch).astype(jnp.int32).sum(-1)
        each = losses * tokens.astype(losses.dtype), tokens, batch["bytes"]
        nats, tokens, size = (jnp.where(is_real, x, jnp.zeros_like(x)) for x in each)
        return {
            "nats": nats.sum(keepdims=True),
            "tokens": count_words(tokens[:, None]),
            "bytes": count_words(size[:, None]),
        }

    @property
    def score_names(self) -> tuple[str, ...]:
        """Scores of every evaluation."""
        return "perplexity", "bits_per_byte"

    def scores(self, sums: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
        """Return perplexity and bits per byte, from sums over all held-out windows."""
        nats, tokens, count = (
            float(sums[key].sum()) for key in ("nats", "tokens", "bytes")
        )
        return {
            "perplexity": float(np.exp(nats / max(tokens, 1))),
            # Per byte of text and not per token, so that tokenizers can be compared.
            "bits_per_byte": nats / math.log(2) / max(count, 1),
        }


@dataclass(frozen=True, kw_only=True)
class Regression(Objective):
    """Several numbers a sample, from predictions [B, n]."""

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
        target = batch["target"]
        # [B, 1] less [B] would be [B, B]: every estimate against every target.
        if outputs.shape != target.shape or outputs.ndim < 2:
            raise BadInput(
                "the network's outputs are not of the targets' shape",
                rule="Regression has an output [B, n] for each number of a target "
                "[B, n]; nothing is broadcast",
                values=f"a sample's outputs are {describe_samples(outputs)}, its "
                f"target is {describe_samples(target)}",
                remedy="target[:, None], or another last layer"
                if target.ndim == 1
                else f"a last layer of {target.shape[-1]} outputs, or other targets",
            )
        # The difference of two bfloat16 numbers has hardly a digit.
        dtype = accumulation_dtype(outputs.dtype)
        return outputs.astype(dtype) - batch["target"].astype(dtype)


@dataclass(frozen=True, kw_only=True)
class Captioning(Objective):
    """The next word at every place of a caption, from logits [B, L, vocabulary].

    `words` are the caption after `BEGIN`, `target` the caption before `END`; both are
    padded with `PAD_ID`, which does not count.
    """

    inputs: BatchKeys = (("clip", "float32"), ("words", "int32"))
    targets: BatchKeys = (("target", "int32"),)
    logits: VocabLogits = field(default_factory=UnsplitLogits)
    """Loss and argmax of the logits, whole or sliced."""

    def for_vocab_parallel(self) -> Self:
        """Return the objective of sliced logits."""
        return replace(self, logits=VocabParallelLogits())

    def dim_axes(self, key: str, rank: int) -> tuple[str | None, ...]:
        """Name the axes: each frame of a clip [B, T, H, W, C] is split as an image."""
        return (None, *spatial_axes(rank - 1)) if key == "clip" else ()

    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the mean cross entropy over each caption's words, [B], nats."""
        _check_labels(outputs, "target", batch["target"])
        each = self.logits.cross_entropy(outputs, batch["target"])
        asked = _is_word(batch).astype(each.dtype)
        # A sample of padding alone has no word to divide by.
        return (each * asked).sum(-1) / jnp.maximum(asked.sum(-1), 1)

    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return whether each word's largest logit is its target, bool [B, L]."""
        _check_labels(outputs, "target", batch["target"])
        return self.logits.argmax(outputs) == batch["target"]

    def target_mask(self, correct: jax.Array, batch: Batch) -> jax.Array:
        """Return which targets are a word or the end, bool [B, L]."""
        return _is_word(batch)


@dataclass(frozen=True, kw_only=True)
class FunctionObjective(Objective):
    """A loss of one's own: a function of outputs and batch."""

    loss: Callable[[Any, Batch], jax.Array]
    """`loss(outputs, batch)`, to the loss of each sample, [B]."""
    answers: Callable[[Any, Batch], jax.Array] | None = None
    """`answers(outputs, batch)`, to whether each is right, bool [B, ...]; None: there
    is no accuracy."""

    @property
    def has_answers(self) -> bool:
        """Whether it says which answers are right."""
        return self.answers is not None

    def losses(self, outputs: Any, batch: Batch) -> jax.Array:
        """Return the loss of each sample, [B], in float32 or wider."""
        found = jnp.asarray(self.loss(outputs, batch))
        return found.astype(accumulation_dtype(found.dtype))

    def correct(self, outputs: Any, batch: Batch) -> jax.Array:
        """Return which answers are right; none, where nothing says so."""
        if self.answers is not None:
            return jnp.asarray(self.answers(outputs, batch))
        return jnp.zeros(next(iter(batch.values())).shape[:1], bool)

    def target_mask(self, correct: jax.Array, batch: Batch) -> jax.Array:
        """Return which answers count: none, where nothing says which are right."""
        counts = jnp.ones_like if self.has_answers else jnp.zeros_like
        return counts(correct)


def function_objective(
    loss: Callable[[Any, Batch], jax.Array], sample: Mapping[str, Any]
) -> FunctionObjective:
    """Make the objective of a loss function on samples of these keys.

    `label` and `target` are targets, and all other keys the network's inputs, in their
    order; real numbers are float32 in a batch, whole ones int32.

    Args:
        loss: `loss(outputs, batch)`, to the loss of each sample, [B].
        sample: arrays of one sample or more, [n, ...].
    """
    dtypes = {
        key: "float32" if np.issubdtype(np.asarray(x).dtype, np.inexact) else "int32"
        for key, x in sample.items()
        # Every batch has `id`, which names samples and is no input.
        if key != "id"
    }
    targets = [key for key in dtypes if key in ("label", "target")]
    return FunctionObjective(
        loss=loss,
        inputs=tuple((k, dtype) for k, dtype in dtypes.items() if k not in targets),
        targets=tuple((key, dtypes[key]) for key in targets),
    )


def cast_floats(arrays: Any, dtype: Any) -> Any:
    """Cast the floats among arrays or shapes; None leaves everything as it is.

    >>> [x.dtype.name for x in cast_floats((jnp.ones(2), jnp.arange(2)), "bfloat16")]
    ['bfloat16', 'int32']
    """

    def one(x: Any) -> Any:
        # Labels, token ids and masks keep their dtypes.
        if dtype is None or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        if isinstance(x, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(x.shape, dtype)
        return x.astype(dtype)

    return jax.tree.map(one, arrays)


def describe_samples(arrays: Any) -> str:
    """Say of what shape one sample is, in arrays [B, ...] or shapes of them.

    >>> describe_samples((jnp.ones((2, 3)), jnp.ones(2)))
    '[3] and []'
    """
    leaves = jax.tree.leaves(arrays)
    return " and ".join(str(list(leaf.shape[1:])) for leaf in leaves) or "nothing"


def _check_labels(logits: Logits, key: str, labels: jax.Array) -> None:
    """Refuse labels that are not one whole number for each place of the logits."""
    if logits.ndim and logits.shape[:-1] == labels.shape:
        return
    places, given = list(logits.shape[1:-1]), list(labels.shape[1:])
    remedy = "another last layer, or other targets"
    if labels.shape == (*logits.shape[:-1], 1):
        remedy = f"{key}[..., 0]"
    elif labels.shape == logits.shape:
        remedy = f"{key}.argmax(-1), where {key} has a 1 in the place of its class"
    raise BadInput(
        f"the network's outputs and {key} are not of one sample each",
        rule=f"logits are [B, ..., classes] and {key} [B, ...]: one whole number each",
        values=f"a sample's outputs are {describe_samples(logits)}, for a {key} of "
        f"{places}; its {key} is {given}",
        remedy=remedy,
    )


def _target_count(counts: jax.Array, batch: Batch) -> jax.Array:
    """Return how many targets of each whole sample count, [B], 1 at least."""
    here = batch[_TARGET_COUNT] if _TARGET_COUNT in batch else counts.sum(-1)
    # A sample without targets has a loss of 0, and not 0 / 0.
    return jnp.maximum(here, 1)


def _is_word(batch: Batch) -> jax.Array:
    return batch["target"] != PAD_ID
