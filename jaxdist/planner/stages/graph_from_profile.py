"""A profile of ours as a graph: the blocks of a chain, a node each."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.profile import BlockProfile, LayerProfile, Profile
from jaxdist.planner.layer_times import LayerTimeModel
from jaxdist.planner.stages.graph import LayerGraph, Node

_REQUIRED_FIELDS: Final = (
    "output_bytes",
    "parameter_bytes",
    "flops_forward",
    "flops_backward",
)
_TIME_FIELDS: Final = ("seconds_forward", "seconds_backward")


def parse_profile(text: str, source: str) -> Profile:
    """Read a profile that `jaxdist profile NAME -o FILE` wrote.

    Args:
        text: of the file.
        source: its name, for errors.

    Raises:
        BadInput: it is no such profile, or a block has no size; names the block.
    """
    try:
        tree = json.loads(text)
        for block in tree["blocks"]:
            _check_block(block, source)
        return Profile.from_json(text)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{source} is no profile",
            rule="a profile is what `jaxdist profile NAME -o FILE` writes, or "
            "a graph.txt of PipeDream",
            values=f"{type(error).__name__}: {error}",
            remedy=f"jaxdist profile resnet50 -o {source}",
        ) from error


def _check_block(block: Mapping[str, Any], source: str) -> None:
    """Refuse a block without a size; one that is left out would count as none."""
    name = block["name"]
    for key in _REQUIRED_FIELDS:
        if key not in block:
            near = did_you_mean(key, [k for k in block if k not in _REQUIRED_FIELDS])
            raise BadInput(
                f"{source}: {name} has no {key}",
                rule=f"a block has {', '.join(_REQUIRED_FIELDS)}",
                values=f"{name} has {', '.join(block)}",
                remedy=f"{key} instead of {near}" if near else f'"{key}": ...',
            )
    for key in (*_REQUIRED_FIELDS, *_TIME_FIELDS):
        value = block.get(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number or (value is None and key in _TIME_FIELDS)):
            raise BadInput(
                f"{source}: {name} has no number for {key}",
                rule="times are seconds, sizes bytes, of the whole batch",
                values=f"{name}: {key} = {value!r}",
                remedy=f'"{key}": 0, where there is none',
            )


def graph_from_profile(
    profile: Profile, source: str, time_model: LayerTimeModel | None = None
) -> LayerGraph:
    """Return the blocks of a profile as a chain.

    A block takes the seconds measured of it, or of all its layers; without them those
    of its layers at a speed.

    Args:
        profile: of a minibatch.
        source: its name, for errors.
        time_model: for blocks that nobody measured.

    Raises:
        BadInput: the network is no chain, or a block was not measured and there is no
            speed, or it was measured and takes no time.
    """
    if not profile.blocks:
        raise BadInput(
            f"{profile.model} cannot be cut into stages",
            rule="a network with stages is a chain of blocks",
            values=f"{source}: {profile.note or 'no blocks'}",
            remedy="a network with chain(), as docs/your_model.md has it",
        )
    nodes = tuple(
        _block_node(block, profile, source, time_model) for block in profile.blocks
    )
    names = [node.name for node in nodes]
    return LayerGraph(
        source=source,
        nodes=nodes,
        edges=tuple(itertools.pairwise(names)),
        origin=_time_provenance(profile, time_model),
    )


def _block_node(
    block: BlockProfile,
    profile: Profile,
    source: str,
    time_model: LayerTimeModel | None,
) -> Node:
    layers = _block_layers(block, profile)
    own = _measured_seconds([block]) or _measured_seconds(layers)
    if own is not None and block.flops and not any(own):
        raise _zero_time_error(block, source)
    if own is None and time_model is None:
        raise _unmeasured_error(block, source)
    forward, backward = own or _model_seconds(_costed_layers(block, layers), time_model)
    return Node(
        name=block.name,
        label=block.kind,
        forward=forward,
        backward=backward,
        output=block.output_bytes,
        kept=max(block.output_bytes, sum(row.output_bytes for row in layers)),
        parameters=block.parameter_bytes,
        cut_after=block.cut_after,
    )


def _block_layers(block: BlockProfile, profile: Profile) -> list[LayerProfile]:
    return [row for row in profile.layers if row.block == block.name]


def _costed_layers(
    block: BlockProfile, layers: Sequence[LayerProfile]
) -> Sequence[LayerProfile]:
    """Return the layers of a block, or itself where they do not say what it does."""
    return layers if sum(row.flops for row in layers) == block.flops else [block]


def _time_provenance(profile: Profile, time_model: LayerTimeModel | None) -> str:
    """Say where the times are from."""
    measured = sum(
        (_measured_seconds([block]) or _measured_seconds(_block_layers(block, profile)))
        is not None
        for block in profile.blocks
    )
    if measured == len(profile.blocks) or time_model is None:
        return "measured"
    return time_model.provenance + f", {measured} blocks measured" * bool(measured)


def _model_seconds(
    rows: Sequence[LayerProfile], time_model: LayerTimeModel | None
) -> tuple[float, float]:
    each = [time_model.layer_seconds(row) for row in rows] if time_model else []
    return sum(forward for forward, _ in each), sum(backward for _, backward in each)


def _measured_seconds(rows: Sequence[LayerProfile]) -> tuple[float, float] | None:
    """Add up what was measured, if all of it was."""
    forward = [row.seconds_forward for row in rows]
    backward = [row.seconds_backward for row in rows]
    if not rows or None in forward or None in backward:
        return None
    return sum(s or 0.0 for s in forward), sum(s or 0.0 for s in backward)


def _unmeasured_error(block: BlockProfile, source: str) -> BadInput:
    return BadInput(
        f"{source}: {block.name} was not measured",
        rule="a block has measured seconds, or those of a device",
        values=f"{block.name}: {block.flops:,} FLOP, no seconds",
        remedy=(
            "--flops-rate 10e12, the FLOP/s of a device",
            "--cluster NAME, and what the oracle predicts for its device",
        ),
    )


def _zero_time_error(block: BlockProfile, source: str) -> BadInput:
    return BadInput(
        f"{source}: {block.name} takes no time",
        rule="a block that has FLOPs takes time",
        values=f"{block.name}: {block.flops:,} FLOP in 0 s",
        remedy=f"measure {block.name} again",
    )
