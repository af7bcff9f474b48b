"""A step by term: what a case takes on a system, in seconds.

    data     compute + all-reduce(p, d w)
    spatial  compute / p + halos + all-reduce in hosts + all-reduce between hosts
    filter   slices + passes over the outputs + all-reduce between groups
    layer    (p + S - 1) / S max stage + 2 (p + S - 2) (alpha + max y b d / (S c))

each with the optimizer's update and with what is waited for input (equations of ParaDL,
HPDC 2021, table 3, with the corrections of docs/paradl.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxdist.oracle.published.paradl.case import ParadlCase
from jaxdist.oracle.published.paradl.rings import ring_seconds
from jaxdist.oracle.published.paradl.slices import (
    compute_by_kind,
    copy_seconds,
    update_seconds,
)
from jaxdist.oracle.published.paradl.stages import pipeline_terms
from jaxdist.oracle.published.paradl.staging import (
    gather_seconds,
    halo_seconds,
    scatter_seconds,
    tail_gather_seconds,
)
from jaxdist.oracle.published.paradl.supply import InputDemand, input_stall
from jaxdist.oracle.published.paradl.system import ParadlSystem


@dataclass(frozen=True, kw_only=True)
class BandwidthShares:
    """The two numbers of the model that are fitted."""

    all_reduce: float
    """Share of a link's bandwidth that sums of gradients get."""
    staging: float
    """Share of a host's link that copies through hosts get."""


def paradl_step_terms(
    case: ParadlCase, system: ParadlSystem, shares: BandwidthShares
) -> dict[str, float]:
    """Return the seconds of one step by term, without input."""
    if case.split == "layer":
        return pipeline_terms(case, system)
    serial = case.workload.seconds_per_sample.value
    work = compute_by_kind(
        case.layers, serial, case.group_batch, case.layer_split, system
    )
    found = {f"compute, {kind}": seconds for kind, seconds in work.items()}
    found |= _activation_terms(case, system, shares)
    # A profile has the backward pass, of which two thirds of a step's compute are.
    hidden = system.overlap.value * sum(work.values()) * 2 / 3
    found |= _gradient_terms(case, system, shares, hidden)
    found["update"] = update_seconds(case.layers, case.layer_split, system)
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def add_input_terms(
    case: ParadlCase,
    system: ParadlSystem,
    shares: BandwidthShares,
    terms: Mapping[str, float],
) -> dict[str, float]:
    """Return the terms of a step, with its samples handed out and waited for."""
    if case.split not in ("", "layer") and case.group > 1:
        among = case.layers, case.group, case.group_batch, system
        terms = {**terms, "scatter": scatter_seconds(*among, shares.staging)}
    reading = InputDemand(reader_samples=case.group_batch, total=case.total)
    work = sum(s for name, s in terms.items() if name.startswith("compute"))
    late = input_stall(reading, work, sum(terms.values()), system)
    return {**terms, "input": late} if late else dict(terms)


def _activation_terms(
    case: ParadlCase, system: ParadlSystem, shares: BandwidthShares
) -> dict[str, float]:
    """Return what devices of a group say to each other before gradients."""
    if case.group == 1 or not case.split:
        return {}
    among = case.group, case.group_batch, system
    if case.split == "spatial":
        return {
            "halos": halo_seconds(case.layers, *among, shares.staging),
            "tail": tail_gather_seconds(case.layers, *among, shares.staging),
        }
    layers = case.split_layers
    told = {"copies": copy_seconds(layers, case.group_batch, system)}
    if case.transport == "hosts":
        return told | {"gathers": gather_seconds(layers, *among, shares.staging)}
    # Outputs are gathered and their gradients scattered; by channel outputs are summed
    # as a whole, since what follows reads all of them, and gradients are gathered.
    times = 3 if case.split == "channel" else 2
    reach = system.ring_link(case.group)
    each = system.element_bytes * case.group_batch
    sizes = (each * layer.outputs for layer in layers)
    moved = (ring_seconds(case.group, size, reach, passes=times) for size in sizes)
    return told | {"gathers": sum(moved)}


def _gradient_terms(
    case: ParadlCase,
    system: ParadlSystem,
    shares: BandwidthShares,
    overlapped_seconds: float,
) -> dict[str, float]:
    """Return the sums of gradients: in a group that splits samples, and over groups."""
    size = float(system.element_bytes * case.weight_count)
    if not case.split or case.groups == 1:
        devices = case.devices if case.split in ("", "spatial") else 1
        reach = system.ring_link(devices)
        whole = ring_seconds(
            devices, size, reach, passes=2, bandwidth_share=shares.all_reduce
        )
        return {"gradients": max(whole - overlapped_seconds, 0.0)}
    inner = 0.0
    if case.split == "spatial":
        near = system.ring_link(case.group)
        inner = ring_seconds(
            case.group, size, near, passes=2, bandwidth_share=shares.all_reduce
        )
    # One device of each group sums all, or each its part beside the others: as many
    # bytes through the host's port.
    crowd = (
        system.leader_contention.value
        if case.devices > system.ring_links[1].max_devices
        else 1.0
    )
    far = system.ring_link(case.devices)
    outer = ring_seconds(
        case.groups, size, far, passes=2, bandwidth_share=shares.all_reduce / crowd
    )
    return {
        "gradients in groups": inner,
        "gradients between groups": max(outer - overlapped_seconds, 0.0),
    }
