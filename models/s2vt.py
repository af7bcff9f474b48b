"""S2VT: two stacked LSTMs that encode a clip, then decode its caption.

Venugopalan, Rohrbach, Donahue, Mooney, Darrell, Saenko 2015, "Sequence to Sequence -
Video to Text", arXiv:1505.00487. Of T frames and L words the first LSTM reads the
features of the frames and then L times padding, the second reads what the first returns
and beside it T times padding and then the words:

    lstm1   frame 1 ... frame T   0       0      0     ...
    lstm2   0       ... 0         BEGIN   word 1 word 2 ...
    said                          word 1  word 2 word 3 ... END
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.core.block_protocol import LogitsLayer
from jaxdist.core.special_tokens import BOS_ID, SPECIAL_TOKENS
from jaxdist.layers import LSTM, Dropout, Embed, Linear
from jaxdist.models.config import ModelConfig, resolve_preset
from jaxdist.models.conv_blocks import Chain, Dense
from jaxdist.models.vgg import VGGPreset, vgg_trunk

Layer = Any
Carried = tuple[jax.Array, jax.Array]
"""What goes from block to block: features `[B, steps, C]`, and words int32 `[B, L]`."""


@dataclass(frozen=True, kw_only=True)
class S2VTPreset(VGGPreset):
    """Settings of an S2VT; those of images are of one frame."""

    dropout: float = 0.0
    """Share of features dropped before each LSTM and before the last layer."""
    frames: int
    """Frames of a clip it was made for; it takes any number."""
    words: int
    """Words of a caption it was made for, the end included; it takes any number."""
    vocabulary: int
    """Distinct words, with padding, begin and end."""
    embed: int
    """Features of a frame and of a word before the LSTMs."""
    hidden: int
    """Units of each LSTM."""


class Frames(nnx.Module):
    """A convolutional network on each frame by itself, and one linear layer."""

    def __init__(self, preset: S2VTPreset, dtype: Any, rngs: nnx.Rngs) -> None:
        # Dropout draws by sample: between frames and their samples there is none.
        self.cnn = Chain(vgg_trunk(replace(preset, dropout=0.0), dtype, rngs))
        self.embed = Linear(preset.dense, preset.embed, dtype=dtype, rngs=rngs)
        self.dropout = Dropout(preset.dropout)

    def __call__(self, x: Carried) -> Carried:
        """Map a clip `[B, T, H, W, C_in]` to `[B, T, embed]`; words go through."""
        clip, words = x
        # Frames as samples: the network on each frame knows nothing of the clip.
        features = self.embed(self.cnn(clip.reshape(-1, *clip.shape[2:])))
        return self.dropout(features.reshape(*clip.shape[:2], -1)), words


class Watch(nnx.Module):
    """The first LSTM: the frames, then padding while words are said."""

    def __init__(self, preset: S2VTPreset, dtype: Any, rngs: nnx.Rngs) -> None:
        self.lstm = LSTM(preset.embed, preset.hidden, dtype=dtype, rngs=rngs)
        self.dropout = Dropout(preset.dropout)

    def __call__(self, x: Carried) -> Carried:
        """Map `[B, T, embed]` to `[B, T + L, hidden]`; words go through."""
        frames, words = x
        # Zeros in place of frames while words are generated.
        padded = jnp.pad(frames, ((0, 0), (0, words.shape[1]), (0, 0)))
        return self.dropout(self.lstm(padded)), words


class Speak(nnx.Module):
    """The second LSTM: what the first returned, beside padding and then the words."""

    def __init__(self, preset: S2VTPreset, dtype: Any, rngs: nnx.Rngs) -> None:
        self.table = Embed(preset.vocabulary, preset.embed, rngs=rngs)
        # Without a dtype flax would fix that of the first weights, also for float64.
        self.table.dtype = dtype
        wide = preset.hidden + preset.embed
        self.lstm = LSTM(wide, preset.hidden, dtype=dtype, rngs=rngs)

    def __call__(self, x: Carried) -> jax.Array:
        """Map `[B, T + L, hidden]` and words `[B, L]` to `[B, L, hidden]`."""
        watched, words = x
        steps = watched.shape[1] - words.shape[1]
        # Zeros in place of words while frames are read.
        said = jnp.pad(self.table(words), ((0, 0), (steps, 0), (0, 0)))
        return self.lstm(_concat_features(watched, said))[:, steps:]


class S2VT(nnx.Module):
    """VGG16 on each frame, two LSTMs of 1,000 units, 500 features a frame and a word.

    Paper: Venugopalan et al. 2015, arXiv:1505.00487, section 3, the model on RGB frames
    with VGG16; its features are those behind the ReLU of `dense2`, and nothing is
    frozen here. Dropout is ours, and off. Vocabulary: the 12,594 words of the paper's
    MSVD corpus, and padding, begin and end.
    Input: clips `[B, T, 224, 224, 3]` and words int32 `[B, L]`, any T and L; here 60
    and 20, the 80 steps of the paper.
    Parameters: 171,225,141 =
    134,260,544 of VGG16 without its head + (4,096 + 1) 500 of the frames
    + 4 (500 + 1,000 + 1) 1,000 of lstm1 + 12,597 500 of the words
    + 4 (1,000 + 500 + 1,000 + 1) 1,000 of lstm2 + (1,000 + 1) 12,597 of the head.
    FLOPs a sample: 1.86 T. METEOR on MSVD: 29.2 % (its table 2).
    """

    answers = LogitsLayer(layer="words.dense")
    presets: ClassVar = {
        "full": S2VTPreset(
            image=(224, 224),
            width=64,
            stages=((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)),
            grid=7,
            frames=60,
            words=20,
            vocabulary=12_594 + len(SPECIAL_TOKENS),
            embed=500,
            hidden=1000,
        ),
        "tiny": S2VTPreset(
            image=(16, 16),
            width=4,
            stages=((1, 1), (1, 2)),
            grid=4,
            frames=5,
            words=6,
            vocabulary=20,
            embed=24,
            hidden=32,
        ),
    }

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = _resolve_preset(config)
        logits = preset.hidden, preset.vocabulary
        self.frames = Frames(preset, dtype, rngs)
        self.lstm1 = Watch(preset, dtype, rngs)
        self.lstm2 = Speak(preset, dtype, rngs)
        self.words = Dense(logits, preset.dropout, dtype, rngs)

    def chain(self) -> Iterator[tuple[str, Layer]]:
        """Yield the named blocks in order; the first is called on both inputs."""
        for name in ("frames", "lstm1", "lstm2", "words"):
            yield name, getattr(self, name)

    def __call__(self, clip: jax.Array, words: jax.Array) -> jax.Array:
        """Map clips `[B, T, H, W, C]` and words `[B, L]` to logits of the next words.

        Returns:
            `[B, L, vocabulary]`.
        """
        x: Any = (clip, words)
        for name, block in self.chain():
            with jax.named_scope(name):
                x = block(x)
        return x

    def caption(self, clip: jax.Array, count: int) -> jax.Array:
        """Caption clips greedily: the likeliest word, given those before it.

        Args:
            clip: `[B, T, H, W, C]`.
            count: words to generate; those behind the first `END` mean nothing.

        Returns:
            Words, int32 `[B, count]`, in evaluation mode.
        """
        # The first two blocks read no words: only their number counts.
        silence = jnp.zeros((clip.shape[0], count), jnp.int32)
        watched, _ = self.lstm1(self.frames((clip, silence)))
        frames, rest = jnp.split(watched, [watched.shape[1] - count], axis=1)

        # While frames are read nothing is said; then each word is the next input.
        table, lstm = self.lstm2.table, self.lstm2.lstm
        # Zero features, and not the vector of a padding word: as in training, where the
        # table's output is padded.
        unsaid = jnp.zeros((*frames.shape[:2], table.features), frames.dtype)
        _, carry = lstm.run(_concat_features(frames, unsaid))

        def say(state: Any, watched: jax.Array) -> tuple[Any, jax.Array]:
            carry, last = state
            step = _concat_features(watched, table(last))[:, None]
            # One step of the LSTM: [B, 1, hidden].
            out, carry = lstm.run(step, carry)
            word = self.words(out)[:, 0].argmax(-1).astype(jnp.int32)
            return (carry, word), word

        begin = jnp.full(watched.shape[:1], BOS_ID, jnp.int32)
        _, words = lax.scan(say, (carry, begin), rest.swapaxes(0, 1))
        return words.swapaxes(0, 1)


def clip_shapes(config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the clip and the words that a network was made for."""
    preset = _resolve_preset(config)
    return (preset.frames, *preset.image, preset.channels), (preset.words,)


def words_of(config: ModelConfig) -> int:
    """Return how many words and signs a network tells apart."""
    return _resolve_preset(config).vocabulary


def _resolve_preset(config: ModelConfig) -> S2VTPreset:
    """Return the preset of the configured size, with what the configuration sets."""
    names = ("vocabulary", "embed", "hidden")
    asked = {name: getattr(config, name) for name in names}
    given = {name: value for name, value in asked.items() if value is not None}
    return replace(resolve_preset(config, S2VT.presets), **given)


def _concat_features(watched: jax.Array, said: jax.Array) -> jax.Array:
    return jnp.concatenate([watched, said.astype(watched.dtype)], -1)
