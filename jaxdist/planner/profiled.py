"""A profile of ours as a graph: the blocks of a chain, a node each."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.profile import Block, Layer, Profile
from jaxdist.core.units import size
from jaxdist.planner.graph import Graph, Node

_NEEDED: Final = ("output_bytes", "parameter_bytes", "flops_forward", "flops_backward")
_SECONDS: Final = ("seconds_forward", "seconds_backward")


def read_profile(text: str, source: str) -> Profile:
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
            _check(block, source)
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


def _check(block: Mapping[str, Any], source: str) -> None:
    """Refuse a block without a size; one that is left out would count as none."""
    name = block["name"]
    for key in _NEEDED:
        if key not in block:
            near = did_you_mean(key, [k for k in block if k not in _NEEDED])
            raise BadInput(
                f"{source}: {name} has no {key}",
                rule=f"a block has {', '.join(_NEEDED)}",
                values=f"{name} has {', '.join(block)}",
                remedy=f"{key} instead of {near}" if near else f'"{key}": ...',
            )
    for key in (*_NEEDED, *_SECONDS):
        value = block.get(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number or (value is None and key in _SECONDS)):
            raise BadInput(
                f"{source}: {name} has no number for {key}",
                rule="times are seconds, sizes bytes, of the whole batch",
                values=f"{name}: {key} = {value!r}",
                remedy=f'"{key}": 0, where there is none',
            )


def of_profile(profile: Profile, source: str, rate: float | None = None) -> Graph:
    """Return the blocks of a profile as a chain.

    A block takes the seconds measured of it, or of all its layers; without them its
    FLOPs at a rate.

    Args:
        profile: of a minibatch.
        source: its name, for errors.
        rate: FLOP/s, for blocks that nobody measured.

    Raises:
        BadInput: the network is no chain, or a block was not measured and there is no
            rate, or it was measured and takes no time.
    """
    if not profile.blocks:
        raise BadInput(
            f"{profile.model} cannot be cut into stages",
            rule="a network with stages is a chain of blocks",
            values=f"{source}: {profile.note or 'no blocks'}",
            remedy="a network with chain(), as docs/your_model.md has it",
        )
    nodes = tuple(_node(block, profile, source, rate) for block in profile.blocks)
    names = [node.name for node in nodes]
    return Graph(
        source=source,
        nodes=nodes,
        edges=tuple(itertools.pairwise(names)),
        origin=_origin(profile, rate),
    )


def _origin(profile: Profile, rate: float | None) -> str:
    """Say where the times are from."""
    measured = sum(_of(block, profile) is not None for block in profile.blocks)
    if measured == len(profile.blocks) or rate is None:
        return "measured"
    flops = f"FLOPs at {size(rate, 'FLOP/s')}"
    return f"{flops}, {measured} blocks measured" if measured else flops


def _of(block: Block, profile: Profile) -> tuple[float, float] | None:
    """Return what was measured of a block, or of all its layers."""
    layers = [row for row in profile.layers if row.block == block.name]
    return _measured([block]) or _measured(layers)


def _node(block: Block, profile: Profile, source: str, rate: float | None) -> Node:
    layers = [row for row in profile.layers if row.block == block.name]
    forward, backward = _seconds(block, _of(block, profile), source, rate)
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


def _seconds(
    block: Block, own: tuple[float, float] | None, source: str, rate: float | None
) -> tuple[float, float]:
    if own is not None and (any(own) or not block.flops):
        return own
    if own is not None:
        raise _idle(block, source)
    if rate is None:
        raise BadInput(
            f"{source}: {block.name} was not measured",
            rule="a block has measured seconds, or its FLOPs are done at a rate",
            values=f"{block.name}: {block.flops:,} FLOP, no seconds",
            remedy="--flops-rate 10e12, the FLOP/s of a device",
        )
    return block.flops_forward / rate, block.flops_backward / rate


def _idle(block: Block, source: str) -> BadInput:
    return BadInput(
        f"{source}: {block.name} takes no time",
        rule="a block that has FLOPs takes time",
        values=f"{block.name}: {block.flops:,} FLOP in 0 s",
        remedy=f"measure {block.name} again",
    )


def _measured(rows: Sequence[Layer]) -> tuple[float, float] | None:
    """Add up what was measured, if all of it was."""
    forward = [row.seconds_forward for row in rows]
    backward = [row.seconds_backward for row in rows]
    if not rows or None in forward or None in backward:
        return None
    return sum(s or 0.0 for s in forward), sum(s or 0.0 for s in backward)
