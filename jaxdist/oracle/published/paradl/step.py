"""The seconds of a step by term.

    data     compute + all-reduce(p, d w)
    spatial  compute / p + halos + all-reduce in hosts + all-reduce between hosts
    filter   slices + passes over the outputs + all-reduce between groups
    layer    (p + S - 1) / S max stage + 2 (p + S - 2) (alpha + max y b d / (S c))

each with the optimizer's update and the wait for input (equations of ParaDL,
HPDC 2021, table 3, with the corrections of docs/paradl.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.oracle.published.paradl.case import ParadlCase
from jaxdist.oracle.published.paradl.communication import (
    COPIES_PER_MESSAGE,
    gather_pass_seconds,
    ring_seconds,
)
from jaxdist.oracle.published.paradl.slices import (
    LayerSplit,
    compute_by_kind,
    compute_by_layer,
    update_seconds,
)
from jaxdist.oracle.published.paradl.system import ParadlSystem

_COPY_PASSES: Final = 3 * 2 * 2
"""Passes over gathered outputs: packed, unpacked, put together; read and written; in
the forward pass and in the backward one."""
_GATHER_REDUCE_PASSES: Final = 3
"""Passes where gradients are summed as a whole: a gather, and an all-reduce."""


@dataclass(frozen=True, kw_only=True)
class FittedRates:
    """The three numbers of the model that are fitted."""

    all_reduce: float
    """Share of a link's bandwidth that sums of gradients get."""
    staging: float
    """Share of a host's link that copies through hosts get."""
    map_dense: float
    """Bytes a second of the weights of dense layers that read a map."""


def paradl_step_terms(
    case: ParadlCase, system: ParadlSystem, rates: FittedRates
) -> dict[str, float]:
    """Return the seconds of one step by term, without input."""
    if case.split == "layer":
        return _pipeline_terms(case, system)
    serial, batch = case.workload.seconds_per_sample.value, case.group_batch
    work = compute_by_kind(case.layers, serial, batch, case.layer_split, system)
    found = {f"compute, {kind}": seconds for kind, seconds in work.items()}
    if case.group > 1 and case.split:
        found |= _activation_terms(case, system, rates)
        found["dense layers that read a map"] = _map_dense_seconds(case, system, rates)

    # Gradients: summed over all devices, or in each group that splits samples and then
    # over groups. A profile has the backward pass, of which two thirds of a step's
    # compute are, to overlap with.
    hidden = system.overlap.value * sum(work.values()) * 2 / 3
    size, whole = float(system.element_bytes * case.weight_count), rates.all_reduce
    if not case.split or case.groups == 1:
        # Filters and channels split the weights as well: gradients are a device's own.
        devices = case.devices if case.split in ("", "spatial") else 1
        reach = system.ring_link(devices)
        took = ring_seconds(devices, size, reach, passes=2, bandwidth_share=whole)
        found["gradients"] = max(took - hidden, 0.0)
    else:
        found["gradients in groups"] = 0.0
        if case.split == "spatial":
            near = system.ring_link(case.group)
            found["gradients in groups"] = ring_seconds(
                case.group, size, near, passes=2, bandwidth_share=whole
            )
        # One device of each group sums all, or each its part beside the others: as many
        # bytes through the host's port.
        contention, leaf = 1.0, system.ring_links[1].max_devices
        if case.devices > leaf:
            contention = system.leader_contention.value
        far = system.ring_link(case.devices)
        outer = ring_seconds(
            case.groups, size, far, passes=2, bandwidth_share=whole / contention
        )
        found["gradients between groups"] = max(outer - hidden, 0.0)
    found["update"] = update_seconds(case.layers, case.layer_split, system)
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def add_input_terms(
    case: ParadlCase,
    system: ParadlSystem,
    rates: FittedRates,
    terms: Mapping[str, float],
) -> dict[str, float]:
    """Return the terms of a step with the scatter of its samples and the wait for them.

        step = max(train, d b x / loader)

    One process of a group reads all of its samples ahead of the step, and broadcasts
    them to the others within it. Rows are medians of several epochs: by the second one
    a host has its part of the data set in its memory, and asks no file system.
    """
    terms, each = dict(terms), system.element_bytes * case.group_batch
    size = each * case.layers[0].inputs
    if case.split not in ("", "layer") and case.group > 1:
        terms["scatter"] = gather_pass_seconds(size, case.group, system, rates.staging)
    late = max(size / system.loader_rate.value - sum(terms.values()), 0.0)
    return {**terms, "input": late} if late else terms


def _map_dense_seconds(
    case: ParadlCase, system: ParadlSystem, rates: FittedRates
) -> float:
    """Return the seconds of dense layers that read a map, beyond their computing.

        reductions d w / rate

    w are the weights of these layers alone: VGG16 and AlexNet have them, and ResNet50
    and CosmoFlow, which average a map first, do not.
    """
    # Groups that split features within a host were measured without it.
    if case.split not in ("spatial", "filter", "channel"):
        return 0.0
    if case.split != "spatial" and case.groups > 1:
        return 0.0
    # The programs of the runs sum gradients in the group and over all of its devices
    # again; those of the rankings let one device of a group go on.
    again = case.groups > 1 and case.transport == "hosts"
    size = system.element_bytes * case.map_dense_weights
    return (1 + again) * size / rates.map_dense


def _activation_terms(
    case: ParadlCase, system: ParadlSystem, rates: FittedRates
) -> dict[str, float]:
    """Return the communication of a group before its gradients."""
    devices, each = case.group, system.element_bytes * case.group_batch
    alpha, layers = system.host_link_alpha.value, case.split_layers
    if case.split == "spatial":
        # Before the layers that are not split the last outputs with positions are
        # gathered, and their gradients scattered.
        last = [one for one in case.layers if math.prod(one.output_grid) > 1][-1]
        size, messages = each * last.outputs, (devices - 1) * alpha
        tail = gather_pass_seconds(size, devices, system, rates.staging) + messages
        # Two exchanges a layer (input, gradient of the output), two neighbours each;
        # the contention is 2 p in ParaDL's tool.
        size = 2 * each * sum(layer.halo for layer in case.layers)
        messages = 4 * sum(layer.halo > 0 for layer in case.layers)
        reached = rates.staging * system.host_link_bandwidth.value
        per_byte = COPIES_PER_MESSAGE * 2 * devices / reached
        halos = size * per_byte + messages * alpha
        return {"halos": halos, "tail": 2 * tail}
    size = each * sum(layer.outputs for layer in layers)
    told = {"copies": _COPY_PASSES * size / system.memory_bandwidth.value}
    if case.transport == "hosts":
        messages = (devices - 1) * len(layers) * alpha
        once = gather_pass_seconds(size, devices, system, rates.staging) + messages
        return told | {"gathers": _GATHER_REDUCE_PASSES * once}
    # Outputs are gathered and their gradients scattered; by channel outputs are summed
    # as a whole, since what follows reads all of them, and gradients are gathered.
    times = 3 if case.split == "channel" else 2
    reach, sizes = system.ring_link(devices), (each * x.outputs for x in layers)
    moved = (ring_seconds(devices, size, reach, passes=times) for size in sizes)
    return told | {"gathers": sum(moved)}


def balance_stages(seconds: Sequence[float], stages: int) -> list[range]:
    """Return contiguous stages of which the slowest is as fast as can be.

    >>> balance_stages([3.0, 1.0, 1.0, 3.0, 2.0], 3)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    # Dynamic program over (stages, layers): the slowest stage, and where the last one
    # begins.
    best = {(0, 0): (0.0, 0)}
    for stage in range(1, stages + 1):
        for end in range(stage, len(seconds) + 1):
            ways = (
                (max(best[stage - 1, start][0], sum(seconds[start:end])), start)
                for start in range(stage - 1, end)
                if (stage - 1, start) in best
            )
            best[stage, end] = min(ways)
    found, end = list[range](), len(seconds)
    for stage in range(stages, 0, -1):
        start = best[stage, end][1]
        found.append(range(start, end))
        end = start
    return found[::-1]


def _pipeline_terms(case: ParadlCase, system: ParadlSystem) -> dict[str, float]:
    """Return the terms of a GPipe pipeline: ParaDL's `layer` row with real stages."""
    layers, parts = case.layers, case.segments
    # Stages are cut by the layers' seconds, not evenly as in ParaDL's row.
    serial = case.workload.seconds_per_sample.value
    each = compute_by_layer(layers, serial, case.group_batch, system)
    stages = balance_stages(each, case.group)
    slowest = max(sum(each[stage.start : stage.stop]) for stage in stages)
    reach = system.ring_link(case.group)
    # All messages of a tick are waited for, so the largest counts.
    ends = [layers[stage.stop - 1].outputs for stage in stages[:-1]]
    size = system.element_bytes * case.group_batch / parts * max(ends, default=0)
    hop = reach.alpha.value + size / reach.bandwidth.value
    most = max(
        update_seconds(layers[stage.start : stage.stop], LayerSplit(), system)
        for stage in stages
    )
    return {
        "compute, stages": slowest,
        "bubble": slowest * (case.group - 1) / parts,
        "messages": 2 * (case.group + parts - 2) * hop,
        "update": most,
    }
