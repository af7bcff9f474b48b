"""Activations that wait in the host's memory: their bytes, and the copies' seconds.

    out      bytes / host link, behind the forward pass of the blocks that are offloaded
    in       bytes / host link, behind the backward pass of these
    exposed  max(0, out - forward seconds) + max(0, in - backward seconds)

Source: Wahib et al. 2020, arXiv:2008.11421, KARMA, section 3: a block is swapped out
and in while others compute; what computing does not hide stalls the device.
"""

from itertools import groupby
from typing import Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.oracle.compute_times import compute_cost_model, stage_cost_model
from jaxdist.oracle.step_description import StepDescription

_MAX_COMMAS: Final = 2
"""Commas in the shape of samples that are no images."""


def repeated_blocks(profile: Profile) -> tuple[tuple[str, ...], ...]:
    """Return the runs of two or more consecutive equal blocks, which can be loops."""
    form: dict[str, list[Any]] = {block.name: [] for block in profile.blocks}
    for x in profile.layers:
        # A layer without weights that blocks share is listed in the first of them.
        if x.weights and x.block in form:
            inner = x.name.partition(".")[2]
            form[x.block].append((inner, x.kind, x.weights, x.flops_forward))
    runs = groupby(form, key=form.__getitem__)
    return tuple(run for _, names in runs if len(run := tuple(names)) > 1)


def has_loops(plan: Plan, profile: Profile) -> bool:
    """Tell whether an accelerator's step has loops over equal blocks.

    Args:
        plan: the layout.
        profile: of the network.
    """
    # Images are the inputs of more than three dims: see `Plan.scan`.
    is_image = profile.inputs[0].count(",") > _MAX_COMMAS
    wanted = plan.scan == "on" or bool(plan.offload) or not is_image
    is_cut = plan.stages > 1 or plan.scan == "off"
    return wanted and not is_cut and bool(repeated_blocks(profile))


def offloaded_layers(case: StepDescription) -> tuple[LayerProfile, ...]:
    """Return the layers whose outputs a plan moves to the host."""
    if not case.plan.offload or case.stages:
        return ()
    looped = {name for run in repeated_blocks(case.profile) for name in run}
    return tuple(
        layer
        for layer in case.profile.layers
        if layer.block in looped and case.plan.memory_action(layer.name) == "offload"
    )


def host_activation_bytes(case: StepDescription, device: Device) -> int:
    """Return the bytes of a microbatch's activations that a device has on the host.

    They are exact where the step was traced. Else they are those of all outputs that
    the plan names, though a backward pass may not read each of them.
    """
    if case.traced_bytes:
        return case.traced_host_bytes
    worker = compute_cost_model(case, device, 0)
    # FLOPs of a layer have parts that are not split, such as sums of biases; its
    # outputs are.
    return sum(
        layer.output_bytes // max(1, round(1 / worker.work_fraction(layer)))
        for layer in offloaded_layers(case)
    )


def host_copy_seconds(case: StepDescription, cluster: Cluster) -> tuple[float, float]:
    """Return the seconds of a step's copies to the host and back: exposed and hidden.

    Args:
        case: network and layout.
        cluster: machines, with the bandwidth between a device and its host.

    Raises:
        BadInput: a plan that offloads, and a machine without that bandwidth.
    """
    moved = host_activation_bytes(case, cluster.device)
    if not moved:
        return 0.0, 0.0
    if cluster.host_link is None:
        raise BadInput(
            f"{cluster.name} does not say how fast a device reaches its host",
            rule="plan.offload copies activations over the link between a device and "
            "its host's memory",
            values=f"plan.offload = {','.join(case.plan.offload)}, {cluster.name} has "
            "no host_link",
            remedy=("host_link: {value: 16 GB/s, origin: ...} in its file",),
        )
    worker = stage_cost_model(case, cluster, 0)
    micro = worker.microbatches
    # One way; as many bytes come back.
    took = micro * moved / cluster.host_link.value
    blocks = {layer.block for layer in offloaded_layers(case)}
    # Copies lie beside the passes of the blocks whose arrays move: these alone hide
    # them.
    spent = [
        worker.microbatch_time(layer)
        for layer in case.profile.layers
        if layer.block in blocks
    ]
    exposed = exposed_copy_seconds(
        took,
        micro * sum(one.forward for one in spent),
        micro * sum(one.backward for one in spent),
    )
    return exposed, 2 * took - exposed


def exposed_copy_seconds(took: float, forward: float, backward: float) -> float:
    """Return the seconds of copies out and in that passes do not hide.

    Args:
        took: seconds of a copy, one way.
        forward: seconds of the forward passes beside which arrays are copied out.
        backward: seconds of the backward passes beside which they come back.

    >>> exposed_copy_seconds(3.0, forward=1.0, backward=2.0)
    3.0
    """
    return max(0.0, took - forward) + max(0.0, took - backward)
