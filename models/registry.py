"""Networks by name: those of this package, and the user's own, `file.py:Class`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.object_reference import (
    call_user_function,
    is_object_reference,
    resolve_object,
)
from jaxdist.models.config import ModelConfig, resolve_preset

if TYPE_CHECKING:
    from flax import nnx

    from jaxdist.train.objective import Objective

_CLASS_PATHS: Final = {
    "alexnet": "jaxdist.models.alexnet:AlexNet",
    "alexnet_two_group": "jaxdist.models.alexnet:AlexNetTwoGroup",
    "convnext_t": "jaxdist.models.convnext:ConvNeXtT",
    "convnext_s": "jaxdist.models.convnext:ConvNeXtS",
    "convnext_b": "jaxdist.models.convnext:ConvNeXtB",
    "convnext_l": "jaxdist.models.convnext:ConvNeXtL",
    "cosmoflow": "jaxdist.models.cosmoflow:CosmoFlow",
    "gpt2_small": "jaxdist.models.transformer:Gpt2",
    "googlenet": "jaxdist.models.googlenet:GoogLeNet",
    "inception_v3": "jaxdist.models.inception:InceptionV3",
    "llama": "jaxdist.models.transformer:Llama",
    "mixtral": "jaxdist.models.transformer:Mixtral",
    "resenc_unet3d": "jaxdist.models.resenc_unet:ResEncUNet3D",
    "resnet8": "jaxdist.models.resnet:ResNet8",
    "resnet50": "jaxdist.models.resnet:ResNet50",
    "resnet152": "jaxdist.models.resnet:ResNet152",
    "s2vt": "jaxdist.models.s2vt:S2VT",
    "unet2d": "jaxdist.models.unet:UNet2D",
    "unet3d": "jaxdist.models.unet:UNet3D",
    "vgg16": "jaxdist.models.vgg:VGG16",
}
_LANGUAGE_MODELS: Final = frozenset({"gpt2_small", "llama", "mixtral"})
"""Networks that are trained to say the next token."""
_REGRESSION_MODELS: Final = frozenset({"cosmoflow"})
"""Networks that are trained to estimate numbers."""
_DENSE_MODELS: Final = frozenset({"resenc_unet3d", "unet2d", "unet3d"})
"""Networks that are trained to say the class of each pixel or voxel, or its numbers."""
_VIDEO_MODELS: Final = frozenset({"s2vt"})
"""Networks that are trained to say what happens in a clip."""

_RESIDUAL_MODELS: Final = frozenset({"resnet8", "resnet50", "resnet152"})
"""Networks whose residual blocks end in a batch norm."""


def model_names() -> tuple[str, ...]:
    """Return the names of all networks; imports none of them."""
    return tuple(_CLASS_PATHS)


def is_user_model(config: ModelConfig) -> bool:
    """Tell whether the network is one of the user's own, `file.py:Class`."""
    return is_object_reference(config.name)


def model_factory(config: ModelConfig) -> "Callable[..., nnx.Module]":
    """Return the network's constructor `(dtype=, rngs=) -> nnx.Module`.

    Raises:
        BadInput: no network has this name.
    """
    if is_user_model(config):
        return partial(_make_user_model, config)
    return partial(_model_class(config.name), config)


def objective_for(config: ModelConfig) -> "Objective":
    """Return what the network of a configuration is trained on.

    A network of the user's own says it as `objective`; else it classifies.

    Raises:
        BadInput: a loss of pixels, for a network that says nothing of them.
    """
    # Imported late: objectives need jax, and listing networks must not import it.
    from jaxdist.train import objective

    if config.name in _DENSE_MODELS:
        return _dense_objective(config)
    if config.loss is not None or config.loss_weights:
        raise BadInput(
            f"{config.name} has its own loss",
            rule="model.loss and model.loss_weights are for networks that say "
            f"something for each pixel: {', '.join(sorted(_DENSE_MODELS))}; one of "
            "your own says its loss as `objective`",
            values=f"model.loss = {config.loss}, model.loss_weights = "
            f"{','.join(f'{x:g}' for x in config.loss_weights)}",
            remedy="model.loss=None model.loss_weights=",
        )
    if is_user_model(config):
        own = getattr(resolve_object(config.name), "objective", None)
        return own or objective.Classification()
    if takes_clips(config):
        return objective.Captioning()
    if config.name in _REGRESSION_MODELS:
        return objective.Regression()
    if config.name in _LANGUAGE_MODELS:
        return objective.NextToken()
    return objective.Classification()


def _dense_objective(config: ModelConfig) -> "Objective":
    """Return what is said of each pixel: its class, or numbers."""
    from jaxdist.train.field_regression import FieldRegression
    from jaxdist.train.segmentation import Segmentation

    weights = config.loss_weights
    match config.loss:
        case "l1" | "l2" | "relative_l2" as loss:
            return FieldRegression(loss=loss, channel_weights=weights)
        case None:
            return Segmentation(class_weights=weights)
        case loss:
            return Segmentation(loss=loss, class_weights=weights)


def image_shape(config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of one image or frame the network was made for.

    Returns:
        `[H, W, C]`, or `[D, H, W, C]` where images are 3-D.

    Raises:
        BadInput: no network has this name.
    """
    preset = resolve_preset(config, _model_class(config.name).presets)
    return (*preset.image, preset.channels)


def output_size(config: ModelConfig) -> int:
    """Return how many numbers a network gives for a sample, or a token."""
    if takes_clips(config):
        module, _ = _CLASS_PATHS[config.name].split(":")
        return int(import_module(module).words_of(config))
    kind = _model_class(config.name)
    if takes_tokens(config):
        return int(kind.sizes(config).vocabulary)
    return int(resolve_preset(config, kind.presets).classes)


def takes_tokens(config: ModelConfig) -> bool:
    """Tell whether the network is called on tokens `[B, T]`, not on images."""
    if is_user_model(config):
        # What a network of the user's own reads follows from its objective.
        return "tokens" in objective_for(config).dtypes
    return config.name in _LANGUAGE_MODELS


def takes_clips(config: ModelConfig) -> bool:
    """Tell whether the network is called on a clip `[B, T, H, W, C]` and its words."""
    return config.name in _VIDEO_MODELS


def clip_shapes(config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a clip and its words that a network was made for.

    Returns:
        `[T, H, W, C]` and `[L]`.
    """
    module, _ = _CLASS_PATHS[config.name].split(":")
    clip, words = import_module(module).clip_shapes(config)
    return clip, words


def ends_blocks_in_norm(config: ModelConfig) -> bool:
    """Tell whether residual blocks of the network end in a batch norm."""
    return config.name in _RESIDUAL_MODELS


def context_length(config: ModelConfig) -> int:
    """Return the most tokens that a language model takes."""
    sizes = _model_class(config.name).sizes(config)
    return int(sizes.context)


def fill_sizes(config: ModelConfig) -> ModelConfig:
    """Return a language model's settings with the sizes that they leave open.

    >>> filled = fill_sizes(ModelConfig(name="llama", depth=2))
    >>> filled.depth, filled.embed, filled.rope_base
    (2, 2048, 500000.0)
    """
    network = _model_class(config.name)
    sizes = asdict(network.sizes(config))
    # No experts and heads of the usual size are settings that are left out.
    known = {key: value for key, value in sizes.items() if value}
    base = config.rope_base or getattr(network, "ROPE_BASE", None)
    epsilon = config.norm_epsilon or network.EPSILON
    return replace(config, **known, rope_base=base, norm_epsilon=epsilon)


def make_model(settings: Mapping[str, Any], **how: Any) -> "nnx.Module":
    """Build a network from the plain values of its settings.

    Args:
        settings: fields of `ModelConfig`.
        how: `dtype` of activations and `rngs` of first weights.
    """
    return model_factory(ModelConfig(**settings))(**how)


def _model_class(name: str) -> Any:
    if name not in _CLASS_PATHS:
        # All names where none is near.
        near = did_you_mean(name, model_names()) or ", ".join(model_names())
        raise BadInput(f"no model named {name}", remedy=f"did you mean {near}?")
    # Imported by name: listing the networks must not import flax.
    module, kind = _CLASS_PATHS[name].split(":")
    return getattr(import_module(module), kind)


def _make_user_model(config: ModelConfig, **how: Any) -> "nnx.Module":
    """Call the user's class or function with what it takes of rngs, dtype and config.

    Args:
        config: its settings.
        how: `dtype` of activations and `rngs` of first weights.

    Raises:
        BadInput: there is no such network, it takes no `rngs`, it cannot have another
            dtype, or it is no `nnx.Module`.
    """
    from flax import nnx

    make = resolve_object(config.name)
    # A class may take any of these: one without `config` has its sizes in its own code.
    offered = {"config": config, **how}
    # The metaclass of nnx hides the arguments of a module's class.
    told = make.__init__ if inspect.isclass(make) else make
    takes = [name for name in inspect.signature(told).parameters if name != "self"]
    if "rngs" not in takes:
        raise BadInput(
            f"{config.name} takes no rngs",
            rule="first weights are drawn from rngs, an nnx.Rngs",
            values=f"it takes {', '.join(takes) or 'nothing'}",
            remedy="def __init__(self, *, rngs):",
        )
    if how.get("dtype") is not None and "dtype" not in takes:
        raise BadInput(
            f"{config.name} has one dtype",
            rule="in bfloat16 a network is told the dtype of its activations",
            values=f"it takes {', '.join(takes)}",
            remedy="precision=float32, or def __init__(self, *, dtype, rngs):",
        )
    given = {key: offered[key] for key in takes if key in offered}
    network = call_user_function(config.name, make, **given)
    if not isinstance(network, nnx.Module):
        raise BadInput(
            f"{config.name} is no network",
            rule="a network is an nnx.Module",
            values=f"it gives {type(network).__name__}",
            remedy="class Net(nnx.Module):",
        )
    return network
