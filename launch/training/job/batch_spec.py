"""What a network is trained on, and whether the samples of a data set fit it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import jax
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.arrays import LabelledArrays, LabelledImages
from jaxdist.input.clips import Clips
from jaxdist.input.feature_spec import Feature, FeatureSpec
from jaxdist.input.image_files import DecodedImages
from jaxdist.input.registry import augmentation_of, is_packed
from jaxdist.input.sample_validation import SampleSpec, check_integers
from jaxdist.input.sources import ArraySource, sample_template
from jaxdist.input.text import TextWindows
from jaxdist.input.tokens import TokenSource
from jaxdist.input.volumes.source import VolumeSource
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
from jaxdist.profile.layer_calls import trace_calls
from jaxdist.train.objective import (
    Captioning,
    Classification,
    NextToken,
    cast_floats,
)
from jaxdist.train.pipeline.stages import constant_rng_binder
from jaxdist.train.segmentation import Segmentation

if TYPE_CHECKING:
    from jaxdist.input.sources import Source
    from jaxdist.train.layout import Layout
    from jaxdist.train.objective import Objective

_INDEX_LOSSES: Final = (
    Classification.losses,
    NextToken.losses,
    Captioning.losses,
    Segmentation.losses,
)
"""Losses whose targets are places of a network's outputs."""
_MAX_CHECKED_BYTES: Final = 2**30
"""Integers of larger arrays are looked at batch by batch."""


def feature_spec(config: Experiment) -> FeatureSpec:
    """Return what the network of a configuration is trained on."""
    if is_user_model(config.model):
        # Only the user's file knows what the network takes; most often the samples come
        # from the user as well.
        side = config.data.size
        known = {"image": Feature(shape=(side, side, 3))} if side else {}
        objective = objective_for(config.model)
        # An objective of one's own may mean anything by a label.
        if type(objective).losses is not Classification.losses:
            return known
        return {**known, "label": Feature(is_open=True)}
    # None, a setting that is left open, is no bound: the data set decides.
    outputs = output_size(config.model)
    if takes_tokens(config.model):
        window = config.data.context
        tokens = Feature(shape=(window,), upper_bound=outputs)
        features = {"tokens": tokens, "target": tokens}
        if is_packed(config.data):
            # `segments` has the place where a token's document begins, which is in the
            # window.
            places = Feature(shape=(window,), upper_bound=window)
            features |= {"segments": places, "bytes": Feature()}
        return features
    if takes_clips(config.model):
        clip, said = clip_shapes(config.model)
        words = Feature(shape=said, upper_bound=outputs)
        return {"clip": Feature(shape=clip), "words": words, "target": words}
    image = Feature(shape=image_shape(config.model))
    objective, pixels = objective_for(config.model), image.shape[:-1]
    is_dense = objective.is_dense
    # The target of a network of images, by its key.
    known = {
        "target": Feature(shape=(*pixels, outputs) if is_dense else (outputs,)),
        "mask": Feature(shape=pixels, upper_bound=outputs),
        "label": Feature(upper_bound=outputs),
    }
    return {"image": image} | {k: known[k] for k in known if k in objective.dtypes}


def batch_shapes(
    config: Experiment, objective: "Objective", source: "Source"
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a global training batch, from one sample.

    Raises:
        BadInput: the samples are not what the network is trained on.
    """
    sample, batch = sample_template(source), config.data.batch
    network, data = config.model.name, config.data.name
    if missing := [key for key in objective.dtypes if key not in sample]:
        raise BadInput(
            f"{network} cannot be trained on {data}",
            rule=f"{network} is trained on {', '.join(objective.dtypes)}",
            values=f"{data} has {', '.join(sample)}, no {', '.join(missing)}",
            remedy=(
                f"arrays called {', '.join(missing)} in {data}",
                "or another model.name, or another data.name",
            ),
        )
    for key, dtype in objective.dtypes.items():
        _check_kind(data, key, sample[key].dtype, np.dtype(dtype))
    # Images are [N, H, W, C], volumes [N, D, H, W, C], clips [N, T, H, W, C]: a network
    # is convolutional, so only their rank and channels must fit.
    shape: tuple[int, ...] = ()
    if "image" in objective.dtypes:
        shape = sample["image"].shape[1:]
    elif "clip" in objective.dtypes:
        shape = sample["clip"].shape[2:]
    is_user = is_user_model(config.model)
    made_for = image_shape(config.model) if shape and not is_user else shape
    if len(made_for) != len(shape) or made_for[-1:] != shape[-1:]:
        raise BadInput(
            "the network is made for other images",
            rule="an image has the dims and the channels that the network reads",
            values=f"{network} is made for {list(made_for)}, "
            f"samples of {data} are {list(shape)}",
            remedy=f"model.channels={shape[-1]}"
            if len(made_for) == len(shape)
            else "another model.name, or another data.name",
        )
    seen = augmentation_of(config.data, source).sample_shapes(
        {key: sample[key].shape[1:] for key in objective.dtypes},
        ignored_values(objective),
    )
    return {
        key: jax.ShapeDtypeStruct((batch, *seen.get(key, ())), np.dtype(dtype))
        for key, dtype in {**objective.dtypes, "id": "int32"}.items()
    }


def sample_spec(config: Experiment, layout: "Layout") -> SampleSpec:
    """Return what is read of a sample and held against it.

    Args:
        config: the settings, those of the network as they were fitted to the data.
        layout: network and objective.
    """
    objective = layout.task.objective
    bounds = {
        key: feature.upper_bound
        for key, feature in feature_spec(config).items()
        if feature.upper_bound is not None
    }
    if is_user_model(config.model):
        bounds |= _output_bounds(layout)
    return SampleSpec(
        dtypes=objective.dtypes,
        floats=config.data.check,
        upper_bounds=bounds,
        ignore_values=ignored_values(objective),
    )


def ignored_values(objective: "Objective") -> dict[str, float]:
    """Return the number that counts for nothing in each target, by key."""
    ignored = getattr(objective, "ignore_value", None)
    return {} if ignored is None else {key: ignored for key, _ in objective.targets}


def _output_bounds(layout: "Layout") -> dict[str, int]:
    """Return below which number targets are, by key, from what a network returns.

    Only its last layer says how many classes or tokens a network of one's own has. An
    objective of one's own may mean anything by its targets, so those have no bound.
    """
    task = layout.task
    objective = task.objective
    if type(objective).losses not in _INDEX_LOSSES:
        return {}
    inputs = cast_floats(objective.model_inputs(layout.batch_shapes), task.dtype)
    _, outputs = trace_calls(
        task.graph,
        (task.state.params, task.state.stats),
        *inputs,
        prepare=constant_rng_binder(inputs),
    )
    # Heads beside the main one have as many outputs.
    main = jax.tree.leaves(outputs)[0]
    return {key: main.shape[-1] for key, _ in objective.targets}


def check_all_integers(config: Experiment, layout: "Layout", source: "Source") -> None:
    """Refuse indices out of range in samples that are arrays, before a run begins.

    Other sources are looked at batch by batch, as they are read.

    Raises:
        BadInput: with the first sample and its number.
    """
    if not isinstance(source, ArraySource):
        return
    checks = sample_spec(config, layout)
    for key, dtype in layout.task.objective.dtypes.items():
        array = source.arrays.get(key)
        # What is mapped from a file may be larger than the machine's memory.
        whole = np.issubdtype(np.dtype(dtype), np.integer)
        if array is not None and whole and array.nbytes <= _MAX_CHECKED_BYTES:
            check_integers(key, array, dtype, np.arange(len(array)), checks)


def _check_kind(data: str, key: str, found: np.dtype, wanted: np.dtype) -> None:
    """Refuse samples that would not be what they are in the dtype of a batch."""
    # NumPy drops imaginary parts, and reads digits out of text.
    if found.kind in "biuf":
        return
    numbers = "whole numbers" if wanted.kind in "iu" else "real numbers"
    remedy = f"{key}.astype({wanted.name!r})"
    if found.kind in "USO" and wanted.kind in "iu":
        remedy = f"names, {key} = numpy.unique({key}, return_inverse=True)"
    elif found.kind == "c":
        remedy = f"numpy.stack([{key}.real, {key}.imag], -1)"
    raise BadInput(
        f"{key} of {data} is not what the network is trained on",
        rule=f"{key} is {numbers}, {wanted.name} in a batch",
        values=f"{key} is {found}",
        remedy=remedy,
    )


def fit_model_config(config: Experiment, source: "Source") -> ModelConfig:
    """Return the network's settings, those left open (None) taken from the data.

    Raises:
        BadInput: the network has no room for the data's vocabulary or windows, or for
            the classes of the images.
    """
    # Only sources of this package know their classes or vocabulary before all samples
    # are read.
    model, known = config.model, len(source_vocabulary(source))
    window, path = config.data.context, config.data.path
    if isinstance(source, TokenSource):
        known, path = source.about.vocabulary, str(source.folder)
    labelled = DecodedImages | LabelledImages | LabelledArrays | VolumeSource
    if isinstance(source, labelled) and source.classes is not None:
        _check_capacity("classes", model.classes, source.classes, "in the data")
        return replace(model, classes=model.classes or source.classes)
    if not known:
        return model
    if not isinstance(source, TextWindows | TokenSource):
        _check_capacity("vocabulary", model.vocabulary, known, "words and signs")
        return replace(model, vocabulary=model.vocabulary or known)
    tokens = "tokens" if isinstance(source, TokenSource) else "characters"
    _check_capacity("vocabulary", model.vocabulary, known, f"{tokens} in {path}")
    _check_capacity("context", model.context, window, "= data.context")
    return replace(
        model,
        vocabulary=model.vocabulary or known,
        context=model.context or window,
    )


def source_vocabulary(source: "Source") -> Sequence[str]:
    """Return the characters or words that tokens stand for; empty without tokens."""
    return source.vocabulary if isinstance(source, TextWindows | Clips) else ""


def _check_capacity(key: str, configured: int | None, required: int, what: str) -> None:
    """Refuse a network that has no room for all tokens, or all classes, of the data.

    A larger one is allowed: its last rows are never trained.
    """
    # jax raises no error for a label or a token beyond the last output.
    if configured is not None and configured < required:
        raise BadInput(
            f"the network's {key} is too small for the data",
            rule=f"model.{key} is at least that of the data",
            values=f"model.{key} = {configured}, {required} {what}",
            remedy=f"model.{key}={required}, or model.{key}=None takes the data's",
        )
