"""Samples: what a data set has, held against the network that shall train on it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.arrays import LabelledImages
from jaxdist.input.clips import Clips
from jaxdist.input.feature_spec import Feature, FeatureSpec
from jaxdist.input.image_files import DecodedImages
from jaxdist.input.numpy_files import LabelledArrays
from jaxdist.input.text import TextWindows
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import (
    clip_shapes,
    image_shape,
    is_user_model,
    objective_for,
    output_size,
    takes_clips,
    takes_tokens,
)

if TYPE_CHECKING:
    from jaxdist.input.sources import Source
    from jaxdist.train.objective import Objective


def feature_spec(config: Experiment) -> FeatureSpec:
    """Return what the network of a configuration is trained on."""
    if is_user_model(config.model):
        # Only its own file knows more; its samples are most often its own as well.
        side = config.data.size
        return {"image": Feature(shape=(side, side, 3))} if side else {}
    outputs = output_size(config.model)
    if takes_tokens(config.model):
        tokens = Feature(shape=(config.data.context,), upper_bound=outputs)
        return {"tokens": tokens, "target": tokens}
    if takes_clips(config.model):
        clip, said = clip_shapes(config.model)
        words = Feature(shape=said, upper_bound=outputs)
        return {"clip": Feature(shape=clip), "words": words, "target": words}
    image = Feature(shape=image_shape(config.model))
    if "target" in objective_for(config.model).dtypes:
        return {"image": image, "target": Feature(shape=(outputs,))}
    return {"image": image, "label": Feature(upper_bound=outputs)}


def batch_shapes(
    config: Experiment, objective: "Objective", source: "Source"
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a global training batch, from one sample.

    Raises:
        BadInput: the samples are not what the network is trained on.
    """
    sample, batch = source.get(np.zeros(1, np.int64)), config.data.batch
    _check_features(config, objective, sample)
    if "image" in objective.dtypes:
        _check_image_shape(config, sample["image"].shape[1:])
    if "clip" in objective.dtypes:
        _check_image_shape(config, sample["clip"].shape[2:])
    shapes = {key: (batch, *sample[key].shape[1:]) for key in objective.dtypes}
    return {
        key: jax.ShapeDtypeStruct(shapes.get(key, (batch,)), np.dtype(dtype))
        for key, dtype in {**objective.dtypes, "id": "int32"}.items()
    }


def fit_model_config(config: Experiment, source: "Source") -> ModelConfig:
    """Return the network's settings, those left open taken from the data.

    Raises:
        BadInput: the network has no room for the data's vocabulary or windows, or for
            the classes of the images.
    """
    model, known = config.model, len(source_vocabulary(source))
    if isinstance(source, DecodedImages | LabelledImages | LabelledArrays):
        _check_capacity("classes", model.classes, source.classes, "in the data")
        return replace(model, classes=model.classes or source.classes)
    if not known:
        return model
    if not isinstance(source, TextWindows):
        _check_capacity("vocabulary", model.vocabulary, known, "words and signs")
        return replace(model, vocabulary=model.vocabulary or known)
    window, path = config.data.context, config.data.path
    _check_capacity("vocabulary", model.vocabulary, known, f"characters in {path}")
    _check_capacity("context", model.context, window, "= data.context")
    return replace(
        model,
        vocabulary=model.vocabulary or known,
        context=model.context or window,
    )


def source_vocabulary(source: "Source") -> Sequence[str]:
    """Return the characters or words that tokens stand for; none where none do."""
    return source.vocabulary if isinstance(source, TextWindows | Clips) else ""


def _check_capacity(key: str, configured: int | None, required: int, what: str) -> None:
    if configured is not None and configured < required:
        raise BadInput(
            f"the network's {key} is too small for the data",
            rule=f"model.{key} is at least that of the data",
            values=f"model.{key} = {configured}, {required} {what}",
            remedy=f"model.{key}={required}, or model.{key}=None takes the data's",
        )


def _check_features(config: Experiment, objective: "Objective", sample: Any) -> None:
    if missing := [key for key in objective.dtypes if key not in sample]:
        network, data = config.model.name, config.data.name
        raise BadInput(
            f"{network} cannot be trained on {data}",
            rule=f"{network} is trained on {_join_names(objective.dtypes)}",
            values=f"{data} has {_join_names(sample)}, no {_join_names(missing)}",
            remedy="another model.name, or another data.name",
        )


def _check_image_shape(config: Experiment, shape: tuple[int, ...]) -> None:
    rank = len(shape)
    made_for = shape if is_user_model(config.model) else image_shape(config.model)
    if len(made_for) != rank or made_for[-1] != shape[-1]:
        raise BadInput(
            "the network is made for other images",
            rule="an image has the dims and the channels that the network reads",
            values=f"{config.model.name} is made for {list(made_for)}, "
            f"samples of {config.data.name} are {list(shape)}",
            remedy=f"model.channels={shape[-1]}"
            if len(made_for) == rank
            else "another model.name, or another data.name",
        )
    if rank > 3 and config.data.shift:
        raise BadInput(
            "volumes are not shifted",
            rule="data.shift moves images [H, W, C]",
            values=f"data.shift = {config.data.shift}, samples are {list(shape)}",
            remedy="data.shift=0",
        )


def _join_names(keys: Iterable[str]) -> str:
    return ", ".join(keys)
