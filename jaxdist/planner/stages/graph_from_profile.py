"""A profile of ours as a graph: a chain of blocks, one node each.

A block takes its measured seconds. Blocks that were not measured take those of a model
of a device: one rate for all FLOPs, or what the oracle predicts.
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster.device import Device
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.core.text.formatting import format_size
from jaxdist.core.validation import parse_json
from jaxdist.planner.stages.graph import LayerGraph, Node, new_profile_remedy

_REQUIRED_FIELDS: Final = (
    "output_bytes",
    "parameter_bytes",
    "flops_forward",
    "flops_backward",
)
_TIME_FIELDS: Final = ("seconds_forward", "seconds_backward")


@dataclass(frozen=True, kw_only=True)
class LayerTimeModel:
    """The speed of a device, layer by layer."""

    provenance: str
    """Where it is from."""
    layer_seconds: Callable[[LayerProfile], tuple[float, float]]
    """Forward and backward pass of a layer on the batch of its profile."""


def constant_rate_model(flops_per_s: float) -> LayerTimeModel:
    """Return a device that does all FLOPs at one rate.

    Args:
        flops_per_s: FLOP/s.
    """
    return LayerTimeModel(
        provenance=f"FLOPs at {format_size(flops_per_s, 'FLOP/s')}",
        layer_seconds=lambda row: (
            row.flops_forward / flops_per_s,
            row.flops_backward / flops_per_s,
        ),
    )


def device_time_model(device: Device, profile: Profile) -> LayerTimeModel:
    """Return a device of a cluster, as the oracle predicts it.

    Args:
        device: peak, efficiency by the FLOPs of a kernel, memory bandwidth, launch.
        profile: its inputs say the dtype.
    """
    # These import jax, which a search with measured times does without.
    from jaxdist.oracle.compute_times import ComputeCostModel
    from jaxdist.oracle.step_description import StepDescription
    from jaxdist.partition.ledger import Ledger

    plan = Plan()
    ledger = Ledger(plan=plan, rows=())
    # Tokens and the like are integers; their networks compute in float32.
    named = (re.match(r"(b?float\d+)", text) for text in profile.inputs)
    dtype = next((found[1] for found in named if found), "float32")
    case = StepDescription(profile=profile, plan=plan, ledgers=(ledger,), dtype=dtype)
    # One device with the whole batch: stages divide the network, not the layers.
    model = ComputeCostModel(case=case, device=device, ledger=ledger, microbatches=1)

    def seconds(row: LayerProfile) -> tuple[float, float]:
        spent = model.microbatch_time(row)
        return spent.forward, spent.backward

    return LayerTimeModel(
        provenance=f"predicted for {device.name} in {dtype}", layer_seconds=seconds
    )


def parse_profile(text: str, source: str) -> Profile:
    """Read a profile that `jaxdist profile NAME -o FILE` wrote.

    Args:
        text: of the file.
        source: its name, for errors.

    Raises:
        BadInput: it is no such profile, or a block has no size; names the block.
    """
    try:
        for block in parse_json(text)["blocks"]:
            name = block["name"]
            # A size that is missing would count as none.
            for key in _REQUIRED_FIELDS:
                if key not in block:
                    others = [k for k in block if k not in _REQUIRED_FIELDS]
                    near = did_you_mean(key, others)
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
        return Profile.from_json(text)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{source} is no profile",
            rule="a profile is what `jaxdist profile NAME -o FILE` writes, a graph.txt "
            "of PipeDream, or a graph of Piper's (JSON with maxDevices and nodes)",
            values=f"{type(error).__name__}: {error}",
            remedy=new_profile_remedy(source),
        ) from error


def graph_from_profile(
    profile: Profile, source: str, time_model: LayerTimeModel | None = None
) -> LayerGraph:
    """Return the blocks of a profile as a chain.

    A block takes the seconds measured of it, or of all its layers; without them those
    of its layers by a model.

    Args:
        profile: of a minibatch.
        source: its name, for errors.
        time_model: for blocks that were not measured.

    Raises:
        BadInput: the network is no chain, or a block was not measured and there is no
            model, or it was measured and takes no time.
    """
    if not profile.blocks:
        raise BadInput(
            f"{profile.model} cannot be cut into stages",
            rule="a network with stages is a chain of blocks",
            values=f"{source}: {profile.note or 'no blocks'}",
            remedy="a network with chain(), as docs/your_model.md has it",
        )
    nodes, measured = [], 0
    for block in profile.blocks:
        layers = [row for row in profile.layers if row.block == block.name]
        seconds = None
        # The block as a whole first: layers timed one by one are not what they take
        # together.
        for rows in ([block], layers):
            forward = [row.seconds_forward for row in rows]
            backward = [row.seconds_backward for row in rows]
            if seconds is None and rows and None not in (*forward, *backward):
                seconds = (
                    sum(s or 0.0 for s in forward),
                    sum(s or 0.0 for s in backward),
                )
        if seconds is not None:
            measured += 1
            if block.flops and not any(seconds):
                raise BadInput(
                    f"{source}: {block.name} takes no time",
                    rule="a block that has FLOPs takes time",
                    values=f"{block.name}: {block.flops:,} FLOP in 0 s",
                    remedy=f"measure {block.name} again",
                )
        elif time_model is not None:
            # The block itself, where its layers do not say all that it computes.
            whole = sum(row.flops for row in layers) == block.flops
            each = [time_model.layer_seconds(x) for x in (layers if whole else [block])]
            seconds = sum(forward for forward, _ in each), sum(b for _, b in each)
        else:
            raise BadInput(
                f"{source}: {block.name} was not measured",
                rule="a block has measured seconds, or those of a device",
                values=f"{block.name}: {block.flops:,} FLOP, no seconds",
                remedy=(
                    "--flops-rate 10e12, the FLOP/s of a device",
                    "--cluster NAME, and what the oracle predicts for its device",
                ),
            )
        nodes.append(
            Node(
                name=block.name,
                label=block.kind,
                forward=seconds[0],
                backward=seconds[1],
                output=block.output_bytes,
                passed=block.passed_bytes,
                # Layers that list no output of their own still save the block's.
                kept=max(
                    block.output_bytes - block.passed_bytes,
                    sum(row.output_bytes for row in layers),
                ),
                parameters=block.parameter_bytes,
                cut_after=block.cut_after,
            )
        )
    origin = "measured"
    if measured < len(nodes) and time_model is not None:
        some = f", {measured} blocks measured" if measured else ""
        origin = time_model.provenance + some
    graph = LayerGraph(
        source=source,
        nodes=tuple(nodes),
        # Skips between blocks are in `passed`, so the chain has all that crosses a cut.
        edges=tuple(itertools.pairwise(node.name for node in nodes)),
        origin=origin,
    )
    graph.check_time()
    return graph
