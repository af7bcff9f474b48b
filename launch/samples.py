"""Samples: what a data set has, held against the network that shall train on it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.clips import Clips
from jaxdist.input.text import Text
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import image_shape

if TYPE_CHECKING:
    from jaxdist.input.sources import Source
    from jaxdist.train.objective import Objective


def batch_shapes(
    config: Experiment, objective: "Objective", source: "Source"
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a global training batch, from one sample.

    Raises:
        BadInput: the samples are not what the network is trained on.
    """
    sample, batch = source.get(np.zeros(1, np.int64)), config.data.batch
    _check_keys(config, objective, sample)
    for key in {"image", "clip"} & objective.dtypes.keys():
        _check_channels(config, sample[key].shape[-1])
    shapes = {key: (batch, *sample[key].shape[1:]) for key in objective.dtypes}
    return {
        key: jax.ShapeDtypeStruct(shapes.get(key, (batch,)), np.dtype(dtype))
        for key, dtype in {**objective.dtypes, "id": "int32"}.items()
    }


def fitted(config: Experiment, source: "Source") -> ModelConfig:
    """Return the network's settings, those left open for words taken from the data.

    Raises:
        BadInput: the network has no room for the data's vocabulary or windows.
    """
    model, known = config.model, len(vocabulary_of(source))
    if not known:
        return model
    if not isinstance(source, Text):
        _check_room("vocabulary", model.vocabulary, known, "words and signs")
        return replace(model, vocabulary=model.vocabulary or known)
    window, path = config.data.context, config.data.path
    _check_room("vocabulary", model.vocabulary, known, f"characters in {path}")
    _check_room("context", model.context, window, "= data.context")
    return replace(
        model,
        vocabulary=model.vocabulary or known,
        context=model.context or window,
    )


def vocabulary_of(source: "Source") -> Sequence[str]:
    """Return the characters or words that tokens stand for; none where none do."""
    return source.vocabulary if isinstance(source, Text | Clips) else ""


def _check_room(key: str, given: int | None, least: int, what: str) -> None:
    if given is not None and given < least:
        raise BadInput(
            f"the network's {key} is too small for the data",
            rule=f"model.{key} is at least that of the data",
            values=f"model.{key} = {given}, {least} {what}",
            remedy=f"model.{key}={least}, or model.{key}=None takes the data's",
        )


def _check_keys(config: Experiment, objective: "Objective", sample: Any) -> None:
    if missing := [key for key in objective.dtypes if key not in sample]:
        network, data = config.model.name, config.data.name
        raise BadInput(
            f"{network} cannot be trained on {data}",
            rule=f"{network} is trained on {_listed(objective.dtypes)}",
            values=f"{data} has {_listed(sample)}, no {_listed(missing)}",
            remedy="another model.name, or another data.name",
        )


def _check_channels(config: Experiment, channels: int) -> None:
    *_, made_for = image_shape(config.model)
    if made_for != channels:
        raise BadInput(
            "the network is made for other images",
            rule="model.channels is the number of channels of the images",
            values=f"{config.model.name} is made for {made_for}, "
            f"images of {config.data.name} have {channels}",
            remedy=f"model.channels={channels}",
        )


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(keys)
