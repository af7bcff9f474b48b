"""Captioning: what a run that was trained on clips says of one it has never seen."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.units import count
from jaxdist.input.clips import decode
from jaxdist.input.registry import open_data
from jaxdist.launch.config import Experiment
from jaxdist.launch.runs import RunFolder
from jaxdist.launch.samples import wanted
from jaxdist.train import stored
from jaxdist.train.load import load


@dataclass(frozen=True, kw_only=True)
class Caption:
    """A caption of a held-out clip, and the one in the data."""

    checkpoint: int
    """Step of the checkpoint that said it."""
    said: str
    """The likeliest words, each behind those before it."""
    written: str
    """What the data says."""


def caption_clip(
    config: Experiment,
    folder: RunFolder,
    prompt: str,
    *,
    words: int,
    checkpoint: int | None = None,
) -> Caption:
    """Say what happens in a held-out clip.

    Args:
        config: what the run was trained with.
        folder: the run.
        prompt: number of the clip among those held out, from 0.
        words: most words to say.
        checkpoint: its step; None takes the newest.

    Raises:
        BadInput: no such clip or checkpoint.
    """
    notes = stored.read_notes(stored.folder_of(folder.checkpoints, checkpoint))
    _, test = open_data(config.data, wanted(config))
    number = _number(prompt, len(test))
    with jax.enable_x64(config.precision == "float64"):
        network, _ = load(folder.path, notes.step)
        sample = test.get(np.array([number]))
        clip = jnp.asarray(sample["clip"], config.precision)
        said = nnx.jit(lambda network, clip: network.caption(clip, words))(
            network, clip
        )
    vocabulary = notes.about["vocabulary"]
    return Caption(
        checkpoint=notes.step,
        said=decode(said[0].tolist(), vocabulary),
        written=decode(sample["target"][0].tolist(), vocabulary),
    )


def _number(prompt: str, clips: int) -> int:
    """Read the number of a held-out clip."""
    if prompt.isdecimal() and int(prompt) < clips:
        return int(prompt)
    raise BadInput(
        f"no held-out clip {prompt}",
        rule="the prompt of a run on clips is the number of a held-out clip",
        values=f"clips 0 to {count(clips - 1)}",
        remedy="--prompt 0",
    )
