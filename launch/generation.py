"""Generating text with a run that was trained on characters."""

from itertools import islice
from typing import Any

import jax

from jaxdist.core.errors import BadInput
from jaxdist.launch.runs import RunFolder
from jaxdist.train import stored
from jaxdist.train.generate import generate
from jaxdist.train.load import load


def continue_text(
    folder: RunFolder,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    seed: int,
    checkpoint: int | None = None,
) -> tuple[int, str]:
    """Continue a text.

    Args:
        folder: the run.
        prompt: how the text begins, of the characters the run was trained on.
        tokens: characters to add.
        temperature: 0 takes the likeliest each time; 1 draws as the network says.
        seed: another seed is another text.
        checkpoint: its step; None takes the newest.

    Returns:
        The checkpoint's step, and what follows the prompt.

    Raises:
        BadInput: the run is no language model, or the prompt is not for it.
    """
    notes = stored.read_notes(stored.folder_of(folder.checkpoints, checkpoint))
    vocabulary = notes.about.get("vocabulary", "")
    if not vocabulary:
        raise _no_language(folder, notes.about)
    places = {character: place for place, character in enumerate(vocabulary)}
    if unknown := sorted(set(prompt) - set(places)):
        raise _unknown(unknown, vocabulary)
    jax.config.update("jax_enable_x64", _is_double(notes))
    network, _ = load(folder.path, notes.step)
    stream = generate(
        network,
        [places[character] for character in prompt],
        window=notes.about["recipe"]["settings"]["context"],
        temperature=temperature,
        seed=seed,
    )
    return notes.step, "".join(vocabulary[token] for token in islice(stream, tokens))


def _is_double(notes: Any) -> bool:
    return any(leaf.dtype == "float64" for leaf in notes.leaves.values())


def _no_language(folder: RunFolder, about: Any) -> BadInput:
    settings = about.get("recipe", {}).get("settings", {})
    return BadInput(
        f"{folder.name} writes no text",
        rule="text comes from a run that was trained on text (data.name=text)",
        values=f"{folder.name} trained {settings.get('name', 'a network')} "
        f"with {about.get('experiment', 'an experiment')}",
        remedy="jaxdist train characters data.path=FILE",
    )


def _unknown(unknown: list[str], vocabulary: str) -> BadInput:
    shown = ", ".join(map(repr, unknown[:8])) + ", ..." * (len(unknown) > 8)
    known = "".join(filter(str.isprintable, vocabulary))
    return BadInput(
        "the prompt has characters that the run has never seen",
        rule="a prompt is of the characters of the text that was trained on",
        values=f"unknown: {shown}",
        remedy=f"use some of: {known[:70]}{' ...' if len(known) > 70 else ''}",
    )
