"""Generating text, or the caption of a clip, with a checkpoint of a run."""

from dataclasses import dataclass
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count
from jaxdist.input.clips import decode_caption
from jaxdist.input.registry import open_data
from jaxdist.launch.config import Experiment
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.best import CheckpointStep
from jaxdist.train.generate import generate
from jaxdist.train.load import load


def generate_text(
    folder: RunFolder,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
    checkpoint: CheckpointStep = None,
    trust: bool = False,
) -> tuple[int, str]:
    """Continue a text.

    Args:
        folder: the run.
        prompt: how the text begins, of the characters the run was trained on.
        max_tokens: characters to add.
        temperature: 0 takes the likeliest each time; 1 draws as the network says.
        seed: another seed is another text.
        checkpoint: its step; None takes the newest.
        trust: whether any module that the files of the run name is imported.

    Returns:
        The checkpoint's step, and what follows the prompt.

    Raises:
        BadInput: the run is no language model, or the prompt is not for it.
    """
    manifest = reader.find_manifest(folder.checkpoints, checkpoint)
    # The manifest is read first: a prompt that is refused costs no reading of weights.
    about, vocabulary = manifest.about, manifest.about.get("vocabulary", "")
    if not vocabulary:
        settings = about.get("recipe", {}).get("settings", {})
        raise BadInput(
            f"{folder.name} writes no text",
            rule="text comes from a run that was trained on text (data.name=text)",
            values=f"{folder.name} trained {settings.get('name', 'a network')} "
            f"with {about.get('experiment', 'an experiment')}",
            remedy="jaxdist train characters data.path=FILE",
        )
    tokens = {character: token for token, character in enumerate(vocabulary)}
    if unknown := sorted(set(prompt) - set(tokens)):
        shown = ", ".join(map(repr, unknown[:8])) + ", ..." * (len(unknown) > 8)
        known = "".join(filter(str.isprintable, vocabulary))
        raise BadInput(
            "the prompt has characters that the run has never seen",
            rule="a prompt is of the characters of the text that was trained on",
            values=f"unknown: {shown}",
            remedy=f"use some of: {known[:70]}{' ...' if len(known) > 70 else ''}",
        )

    # Without 64 bit jax would read a float64 checkpoint as float32.
    is_wide = any(leaf.dtype == "float64" for leaf in manifest.leaves.values())
    jax.config.update("jax_enable_x64", is_wide)
    network, _ = load(folder.path, manifest.step, trust=trust)
    # The stream has no end of its own: as many tokens are taken as are asked for.
    stream = generate(
        network,
        [tokens[character] for character in prompt],
        context_length=about["recipe"]["settings"]["context"],
        temperature=temperature,
        seed=seed,
    )
    text = "".join(vocabulary[token] for token in islice(stream, max_tokens))
    return manifest.step, text


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
