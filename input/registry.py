"""Data sets by name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.input.config import DataConfig

if TYPE_CHECKING:
    from jaxdist.input.sources import Source


def names() -> tuple[str, ...]:
    """Name every data set that can be opened; imports nothing heavy."""
    return tuple(_OPENERS)


def open_data(config: DataConfig) -> "tuple[Source, Source]":
    """Open a data set, preparing it on the first use; any thread may call this.

    Returns:
        The train and the test samples.

    Raises:
        BadInput: no such data set, or its folder is damaged or cannot be written.
    """
    if config.name not in _OPENERS:
        near = did_you_mean(config.name, names())
        raise BadInput(
            f"no data set named {config.name}",
            remedy=f"did you mean data.name={near}?"
            if near
            else f"data.name=<one of {', '.join(names())}>",
        )
    return _OPENERS[config.name](config)


def _digits(config: DataConfig) -> "tuple[Source, Source]":
    from jaxdist.input.digits import open_digits

    return open_digits(Path(config.dir))


def _text(config: DataConfig) -> "tuple[Source, Source]":
    from jaxdist.input.text import open_text

    return open_text(config.path, context=config.context, stride=config.stride)


def _clips(config: DataConfig) -> "tuple[Source, Source]":
    from jaxdist.input.clips import open_clips

    return open_clips(config.path)


def _moving_digits(config: DataConfig) -> "tuple[Source, Source]":
    from jaxdist.input.moving_digits import open_moving_digits

    return open_moving_digits(Path(config.dir))


_OPENERS: Final[Mapping[str, "Callable[[DataConfig], tuple[Source, Source]]"]] = (
    MappingProxyType(
        {
            "digits": _digits,
            "moving_digits": _moving_digits,
            "clips": _clips,
            "text": _text,
        }
    )
)
