"""Generating text with a run that was trained on characters."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

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
from jaxdist.train.generate import generate
from jaxdist.train.load import load


def generate_text(
    folder: RunFolder,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
    checkpoint: int | None = None,
) -> tuple[int, str]:
    """Continue a text.

    Args:
        folder: the run.
        prompt: how the text begins, of the characters the run was trained on.
        max_tokens: characters to add.
        temperature: 0 takes the likeliest each time; 1 draws as the network says.
        seed: another seed is another text.
        checkpoint: its step; None takes the newest.

    Returns:
        The checkpoint's step, and what follows the prompt.

    Raises:
        BadInput: the run is no language model, or the prompt is not for it.
    """
    notes = reader.read_manifest(
        reader.checkpoint_folder(folder.checkpoints, checkpoint)
    )
    vocabulary = notes.about.get("vocabulary", "")
    if not vocabulary:
        raise _not_language_model_error(folder, notes.about)
    places = {character: place for place, character in enumerate(vocabulary)}
    if unknown := sorted(set(prompt) - set(places)):
        raise _unknown_characters_error(unknown, vocabulary)
    jax.config.update("jax_enable_x64", _is_float64(notes))
    network, _ = load(folder.path, notes.step)
    stream = generate(
        network,
        [places[character] for character in prompt],
        context_length=notes.about["recipe"]["settings"]["context"],
        temperature=temperature,
        seed=seed,
    )
    return notes.step, "".join(
        vocabulary[token] for token in islice(stream, max_tokens)
    )


def _is_float64(notes: Any) -> bool:
    return any(leaf.dtype == "float64" for leaf in notes.leaves.values())


def _not_language_model_error(folder: RunFolder, about: Any) -> BadInput:
    settings = about.get("recipe", {}).get("settings", {})
    return BadInput(
        f"{folder.name} writes no text",
        rule="text comes from a run that was trained on text (data.name=text)",
        values=f"{folder.name} trained {settings.get('name', 'a network')} "
        f"with {about.get('experiment', 'an experiment')}",
        remedy="jaxdist train characters data.path=FILE",
    )


def _unknown_characters_error(unknown: list[str], vocabulary: str) -> BadInput:
    shown = ", ".join(map(repr, unknown[:8])) + ", ..." * (len(unknown) > 8)
    known = "".join(filter(str.isprintable, vocabulary))
    return BadInput(
        "the prompt has characters that the run has never seen",
        rule="a prompt is of the characters of the text that was trained on",
        values=f"unknown: {shown}",
        remedy=f"use some of: {known[:70]}{' ...' if len(known) > 70 else ''}",
    )


@dataclass(frozen=True, kw_only=True)
class ClipCaption:
    """A caption of a held-out clip, and the one in the data."""

    checkpoint: int
    """Step of the checkpoint that said it."""
    generated: str
    """The likeliest words, each behind those before it."""
    reference: str
    """What the data says."""


def caption_clip(
    config: Experiment,
    folder: RunFolder,
    prompt: str,
    *,
    max_words: int,
    checkpoint: int | None = None,
) -> ClipCaption:
    """Say what happens in a held-out clip.

    Args:
        config: what the run was trained with.
        folder: the run.
        prompt: number of the clip among those held out, from 0.
        max_words: most words to say.
        checkpoint: its step; None takes the newest.

    Raises:
        BadInput: no such clip or checkpoint.
    """
    notes = reader.read_manifest(
        reader.checkpoint_folder(folder.checkpoints, checkpoint)
    )
    _, test = open_data(config.data, feature_spec(config))
    number = _clip_index(prompt, len(test))
    with jax.enable_x64(config.precision == "float64"):
        network, _ = load(folder.path, notes.step)
        sample = test.get(np.array([number]))
        clip = jnp.asarray(sample["clip"], config.precision)
        said = nnx.jit(lambda network, clip: network.caption(clip, max_words))(
            network, clip
        )
    vocabulary = notes.about["vocabulary"]
    return ClipCaption(
        checkpoint=notes.step,
        generated=decode_caption(said[0].tolist(), vocabulary),
        reference=decode_caption(sample["target"][0].tolist(), vocabulary),
    )


def _clip_index(prompt: str, clips: int) -> int:
    """Read the number of a held-out clip."""
    if prompt.isdecimal() and int(prompt) < clips:
        return int(prompt)
    raise BadInput(
        f"no held-out clip {prompt}",
        rule="the prompt of a run on clips is the number of a held-out clip",
        values=f"clips 0 to {format_count(clips - 1)}",
        remedy="--prompt 0",
    )
