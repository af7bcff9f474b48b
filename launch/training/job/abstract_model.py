"""A network on abstract shapes, as `jaxdist profile` reads it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.experiment import experiment_names, load_experiment
from jaxdist.launch.config.resolve import apply_config_overrides
from jaxdist.models import registry
from jaxdist.models.config import ModelConfig

if TYPE_CHECKING:
    import jax
    from flax import nnx

    from jaxdist.core.profile import Profile
    from jaxdist.input.config import DataConfig

PROFILE_HELP_COMMAND: Final = "jaxdist profile --help"


@dataclass(frozen=True, kw_only=True)
class ProfileInputConfig:
    """The `input.` keys of a profile."""

    size: int | None = None
    """Rows of an input, and columns (and depth), or tokens; None: as the network was
    made for.
    """

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise BadInput(
                "an input has at least one row",
                rule="input.size is at least 1",
                values=f"input.size = {self.size}",
                remedy="input.size=224",
            )


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """What to profile: the keys that `jaxdist profile` takes."""

    batch: int = 1
    """Samples that FLOPs and bytes are of."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """Number format of the computation; parameters are float32 or wider."""
    input: ProfileInputConfig = field(default_factory=ProfileInputConfig)
    """What the network is called on."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Which network."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadInput(
                "there is nothing to count",
                rule="batch is at least 1",
                values=f"batch = {self.batch}",
                remedy="batch=1",
            )


def load_profile_config(
    source: str, overrides: Sequence[str]
) -> "tuple[ProfileConfig, DataConfig | None]":
    """Return what `jaxdist profile SOURCE WORDS` reads, and the data it trains on.

    Args:
        source: a network of the registry, or an experiment by name or file.
        overrides: overrides, `key.sub=value`.

    Raises:
        BadInput: there is no such network, or a word cannot be used.
    """
    # A network goes before an experiment of the same name, such as `alexnet`: a profile
    # is of the network.
    if source in registry.model_names():
        start, data = ProfileConfig(model=ModelConfig(name=source)), None
    elif source in experiment_names() or source.endswith(".py") or "/" in source:
        config = load_experiment(source)
        start, data = (
            ProfileConfig(model=config.model, precision=config.precision),
            config.data,
        )
    else:
        known = [*registry.model_names(), *experiment_names()]
        near = did_you_mean(source, known)
        raise BadInput(
            f"no model or experiment named {source}",
            remedy=f"did you mean {near}?" if near else f"one of {', '.join(known)}",
        )
    return apply_config_overrides(
        start, overrides, experiment=source, list_command=PROFILE_HELP_COMMAND
    )[0], data


def profile_model(config: ProfileConfig, data: "DataConfig | None" = None) -> "Profile":
    """Return a network's profile: traced on abstract shapes, nothing computed.

    Args:
        config: the network and its input.
        data: the input has the size of its samples, unless `config` has one.

    Raises:
        BadInput: the network cannot take an input of this size.
    """
    import jax

    from jaxdist.launch.training.job.abstract_step import bind_dropout_rng
    from jaxdist.profile.network_profile import profile_network

    # Nothing is computed: leave accelerators to those who use them.
    jax.config.update("jax_platforms", "cpu")
    with jax.enable_x64(config.precision == "float64"):
        inputs = abstract_inputs(config, data)
        try:
            return profile_network(
                abstract_network(config),
                inputs,
                name=config.model.name,
                prepare=lambda network: bind_dropout_rng(network, config.batch),
            )
        except BadInput:
            raise
        except (TypeError, ValueError, ZeroDivisionError) as error:
            # Strides and windows have eaten the input up: some layer of the network has
            # nothing left to compute on, and says so in words of its own.
            size, model = "ROWS, of its own data", config.model
            if not registry.is_user_model(model):
                is_text = registry.takes_tokens(model)
                size = str(
                    registry.context_length(model)
                    if is_text
                    else registry.image_shape(model)[0]
                )
            shape = " x ".join(map(str, inputs[0].shape[1:]))
            raise BadInput(
                f"{model.name} cannot take this input",
                rule="an input is large enough that every layer returns something",
                values=f"input {shape}: {str(error).splitlines()[0]}",
                remedy=f"input.size={size}",
            ) from error


def abstract_inputs(
    config: ProfileConfig, data: "DataConfig | None" = None
) -> "tuple[jax.ShapeDtypeStruct, ...]":
    """Return the shapes of what a network is called on, the batch first.

    Args:
        config: says the batch, and the size unless it is left open.
        data: the samples to take the size from; without, as the network was made for.
    """
    import jax

    size = config.input.size
    if registry.takes_tokens(config.model):
        asked = data.context if data else registry.context_length(config.model)
        return (jax.ShapeDtypeStruct((config.batch, size or asked), "int32"),)
    if registry.takes_clips(config.model):
        # Clips [B, T, H, W, C] and their words [B, L].
        clip, words = registry.clip_shapes(config.model)
        if data:
            clip, words = _sample_shapes(config, data, "clip", "words")
        frames, *sides, channels = clip
        sides = sides if size is None else [size] * len(sides)
        clips = (config.batch, frames, *sides, channels)
        return (
            jax.ShapeDtypeStruct(clips, config.precision),
            jax.ShapeDtypeStruct((config.batch, *words), "int32"),
        )
    shape = (
        _sample_shapes(config, data, "image")[0]
        if data and size is None
        else registry.image_shape(config.model)
    )
    # A size that is asked for is that of every side: the input is square, or cubic.
    rows = shape[:-1] if size is None else [size] * len(shape[:-1])
    whole = (config.batch, *rows, shape[-1])
    return (jax.ShapeDtypeStruct(whole, config.precision),)


def abstract_network(config: ProfileConfig) -> "nnx.Module":
    """Build a network on shapes alone."""
    from jaxdist.profile.abstract import build_abstract_network

    return build_abstract_network(
        registry.model_factory(config.model), config.precision
    )


def _sample_shapes(
    config: ProfileConfig, data: "DataConfig", *keys: str
) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of what a sample of a data set has."""
    from jaxdist.input.registry import open_data
    from jaxdist.input.sources import sample_template
    from jaxdist.launch.training.job.batch_spec import feature_spec

    of = Experiment(name="", data=data, model=config.model)
    first = sample_template(open_data(data, feature_spec(of))[0])
    return tuple(tuple(first[key].shape[1:]) for key in keys)
