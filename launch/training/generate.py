"""Generating text, or the caption of a clip, with a checkpoint of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count
from jaxdist.input.clips import decode_caption
from jaxdist.input.registry import open_data
from jaxdist.input.tokenizer import end_token, read_tokenizer
from jaxdist.launch.config import Experiment
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.best import CheckpointStep
from jaxdist.train.checkpoint.manifest import CheckpointManifest
from jaxdist.train.generate import Sampling, generate
from jaxdist.train.load import load


class CharacterCodec:
    """Tokens that are places in a list of characters."""

    end: int | None = None
    """Token of the end of a document; None: there is none."""

    def __init__(self, characters: str) -> None:
        self._characters = characters

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text.

        Raises:
            BadInput: characters that are not in the list.
        """
        tokens = {character: token for token, character in enumerate(self._characters)}
        if unknown := sorted(set(text) - set(tokens)):
            shown = ", ".join(map(repr, unknown[:8])) + ", ..." * (len(unknown) > 8)
            known = "".join(filter(str.isprintable, self._characters))
            raise BadInput(
                "the prompt has characters that the run has never seen",
                rule="a prompt is of the characters of the text that was trained on",
                values=f"unknown: {shown}",
                remedy=f"use some of: {known[:70]}{' ...' if len(known) > 70 else ''}",
            )
        return [tokens[character] for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return "".join(self._characters[token] for token in tokens)


class DocumentCodec:
    """Tokens of a tokenizer; a text begins behind the end of another."""

    def __init__(self, tokenizer: Path, end: int) -> None:
        self._tokenizer, self.end = read_tokenizer(tokenizer), end

    def encode(self, text: str) -> list[int]:
        """Return the end sign, and the tokens of a text."""
        return [self.end, *self._tokenizer.encode(text, add_special_tokens=False).ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(tokens)))


def text_codec(
    folder: RunFolder, manifest: CheckpointManifest
) -> CharacterCodec | DocumentCodec:
    """Return how a run's tokens are text.

    Raises:
        BadInput: it was not trained on text.
    """
    vocabulary = manifest.about.get("vocabulary", "")
    if isinstance(vocabulary, str) and vocabulary:
        return CharacterCodec(vocabulary)
    if not folder.tokenizer.is_file():
        settings = manifest.about.get("recipe", {}).get("settings", {})
        raise BadInput(
            f"{folder.name} writes no text",
            rule="text comes from a run that was trained on text (data.name=text, or "
            "tokens:FOLDER)",
            values=f"{folder.name} trained {settings.get('name', 'a network')} "
            f"with {manifest.about.get('experiment', 'an experiment')}",
            remedy="jaxdist train characters data.path=FILE",
        )
    # Weights that were imported bring a tokenizer, and no word on its end.
    end = manifest.about.get("end")
    if end is None:
        end = end_token(read_tokenizer(folder.tokenizer))
    return DocumentCodec(folder.tokenizer, end)


def generate_text(
    folder: RunFolder,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    sampling: Sampling,
    checkpoint: CheckpointStep = None,
    trust: bool = False,
) -> tuple[int, list[str]]:
    """Continue texts, all at once.

    Args:
        folder: the run.
        prompts: how the texts begin.
        max_tokens: tokens to add to each, at most: a document may end before.
        sampling: how they are drawn.
        checkpoint: its step; None takes the newest.
        trust: whether any module that the files of the run name is imported.

    Returns:
        The checkpoint's step, and what follows each prompt.

    Raises:
        BadInput: the run is no language model, or a prompt is not for it.
    """
    manifest = reader.find_manifest(folder.checkpoints, checkpoint)
    # The manifest is read first: a prompt that is refused costs no reading of weights.
    codec = text_codec(folder, manifest)
    encoded = [codec.encode(prompt) for prompt in prompts]

    # Without 64 bit jax would read a float64 checkpoint as float32.
    is_wide = any(leaf.dtype == "float64" for leaf in manifest.leaves.values())
    jax.config.update("jax_enable_x64", is_wide)
    network, _ = load(folder.path, manifest.step, trust=trust)
    # The stream has no end of its own: as many tokens are taken as are asked for.
    stream = generate(
        network,
        encoded,
        context_length=manifest.about["recipe"]["settings"]["context"],
        sampling=sampling,
    )
    added: list[list[int]] = [[] for _ in prompts]
    open_texts = set(range(len(prompts)))
    for step in islice(stream, max_tokens):
        # A text that has ended goes on with the others, and is not listened to.
        open_texts -= {row for row in open_texts if step[row] == codec.end}
        for row in open_texts:
            added[row].append(step[row])
        if not open_texts:
            break
    return manifest.step, [codec.decode(tokens) for tokens in added]


@dataclass(frozen=True, kw_only=True)
class ClipCaption:
    """A caption of a held-out clip, and the one in the data."""

    checkpoint: int
    """Step of the checkpoint that said it."""
    generated: str
    """The likeliest words, each after those before it."""
    reference: str
    """What the data says."""


def caption_clip(
    config: Experiment,
    folder: RunFolder,
    prompt: str,
    *,
    max_words: int,
    checkpoint: CheckpointStep = None,
    trust: bool = False,
) -> ClipCaption:
    """Say what happens in a held-out clip.

    Args:
        config: what the run was trained with.
        folder: the run.
        prompt: number of the clip among those held out, from 0.
        max_words: most words to say.
        checkpoint: its step; None takes the newest.
        trust: whether any module that the files of the run name is imported.

    Raises:
        BadInput: no such clip or checkpoint.
    """
    manifest = reader.find_manifest(folder.checkpoints, checkpoint)
    _, test = open_data(config.data, feature_spec(config))
    if not prompt.isdecimal() or int(prompt) >= len(test):
        raise BadInput(
            f"no held-out clip {prompt}",
            rule="the prompt of a run on clips is the number of a held-out clip",
            values=f"clips 0 to {format_count(len(test) - 1)}",
            remedy="--prompt 0",
        )
    with jax.enable_x64(config.precision == "float64"):
        network, _ = load(folder.path, manifest.step, trust=trust)
        sample = test.get(np.array([int(prompt)]))
        clip = jnp.asarray(sample["clip"], config.precision)
        # One program for all words: their number is a constant of it.
        caption = nnx.jit(lambda network, clip: network.caption(clip, max_words))
        said = caption(network, clip)
    vocabulary = manifest.about["vocabulary"]
    return ClipCaption(
        checkpoint=manifest.step,
        generated=decode_caption(said[0].tolist(), vocabulary),
        reference=decode_caption(sample["target"][0].tolist(), vocabulary),
    )
