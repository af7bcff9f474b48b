"""The bytes that a device needs for a step, by term.

state         exact: from the layout's shapes
frozen        likewise, of parameters that are not trained
gathered      parameters that fsdp shards, where a pipeline gathers them for a step
gradients     as many bytes as the parameters that a device computes with: whole ones
              in at least float32 where microbatches accumulate theirs before fsdp
              scatters them
activations   sum over layers of share (output_bytes + inner_bytes) in a device's
              largest stage, once for every microbatch in flight; of rematerialized
              blocks their outputs and what the tensor axis brought, and one block
              whole, once; skips that a stage is handed by stages before it; none of
              what waits in the host's memory
weight residuals
              where gradients of weights have ticks of their own: share output_bytes of
              the layers that have weights, once for every backward pass whose gradients
              of weights are to come: their outputs' gradients; of rematerialized blocks
              twice that, with their inputs, which are not computed a third time
batch         the device's samples, kept through the step
buffers       the largest array of a collective

Where the step was traced: the state, the batch and the program's peak beside them
(`jaxdist/profile/xla_cpu/peak_memory.py`).
"""

import numpy as np

from jaxdist.core.axes import CONTEXT_AXIS
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.plan import Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.oracle.compute_times import compute_cost_model
from jaxdist.oracle.offload import has_loops, host_activation_bytes
from jaxdist.oracle.rank_devices import rank_devices
from jaxdist.oracle.step_description import FROZEN_TERM, StepDescription
from jaxdist.pipeline.plan_schedule import plan_schedule
from jaxdist.pipeline.sync_schedule import SyncSchedule


def trace_predicts_memory(plan: Plan, device: Device, profile: Profile) -> bool:
    """Tell whether a traced step predicts the peak of a device's compiler.

    The trace is laid out as XLA's CPU backend does it, which undoes rematerialization
    outside of loops. What accelerators save of such a plan is read off its layers.

    Args:
        plan: the layout.
        device: whose compiler.
        profile: of the network.
    """
    return device.is_cpu or not plan.remat or has_loops(plan, profile)


def device_memory(case: StepDescription, device: Device) -> dict[str, int]:
    """Return bytes by term, on the device that needs most.

    Args:
        case: the step.
        device: any: its speed is not used.
    """
    # One rank that runs out of memory stops the run, so the fullest counts.
    every = _memory_by_rank(case, device)
    return max(every, key=lambda terms: sum(terms.values()))


def tightest_memory(
    case: StepDescription, cluster: Cluster
) -> tuple[dict[str, int], int]:
    """Return bytes by term and the memory of the device that has least to spare.

    Args:
        case: the step.
        cluster: the machines; of a rank on several kinds the smallest memory counts.
    """
    found = []
    for rank, terms in enumerate(_memory_by_rank(case, cluster.device)):
        kinds = rank_devices(cluster, case.plan.placed, rank)
        found.append((terms, round(min(kind.memory.value for kind in kinds))))
    return min(found, key=lambda pair: pair[1] - sum(pair[0].values()))


def _memory_by_rank(case: StepDescription, device: Device) -> list[dict[str, int]]:
    """Return bytes by term of each rank of the pipe axis."""
    # The trace has every temporary of the program, so no estimate is needed beside it;
    # all ranks run the same program.
    if case.traced_bytes:
        return [{**case.state_bytes, **case.traced_bytes}] * len(case.ledgers)
    plan, every = case.plan, []
    saved = [_saved_activations(case, device, k) for k in range(len(case.ledgers))]
    schedule = plan_schedule(plan, case.microbatches) if case.stages else None
    # With `remat_end` ranks save different blocks, but all stages are one program,
    # whose arrays have room for the rank that saves most.
    most = max(kept for kept, _ in saved)
    # All devices have rings of as many rows as the last stage needs.
    pending, late = 0, 0.0
    if isinstance(schedule, SyncSchedule) and schedule.release_kind == "weights":
        pending = max(map(schedule.pending_weights, range(schedule.devices)))
        late = max(_weight_residuals(case, device, k) for k in range(len(case.ledgers)))
    for pipe_rank, (kept, once) in enumerate(saved):
        rows = case.ledgers[pipe_rank].rows
        # An asynchronous pipeline (no flush) fills all of its stages.
        flying = 1 if schedule is None else len(case.stages)
        if isinstance(schedule, SyncSchedule):
            flying = schedule.live_inputs(pipe_rank)

        # Without ZeRO 3 parameters are whole on every device: nothing is gathered.
        gathers = [row for row in rows if row.what == "parameters"]
        whole = 0
        if plan.zero == 3:
            whole = sum(row.payload // row.arrays for row in gathers)
        # Gradients lie beside the parameters that they are of; a sum over microbatches
        # is of whole parameters, since fsdp scatters it at the end. Matrices that were
        # gathered in 16 bits have sums in float32; stages gather what they hold.
        own, sums = case.state_bytes.get("parameters", 0), whole
        if not case.stages:
            narrow = np.dtype(case.dtype)
            sums = whole * accumulation_dtype(narrow).itemsize // narrow.itemsize
        # Of what is gathered, frozen parameters have no gradient.
        held = own + case.state_bytes.get(FROZEN_TERM, 0)
        sums = sums * own // max(1, held)
        terms = {
            **case.state_bytes,
            "gathered": whole if case.stages else 0,
            "gradients": max(own, sums) if case.microbatches > 1 else own,
            "activations": round((most if plan.remat_end else kept) * flying + once),
            "weight residuals": round(late * pending),
            "batch": case.batch_bytes // plan.mesh.size(*plan.batch_axes, CONTEXT_AXIS),
            "buffers": max((x.payload // max(1, x.arrays) for x in rows), default=0),
        }
        every.append({term: size for term, size in terms.items() if size})
    return every


def _saved_activations(
    case: StepDescription, device: Device, pipe_rank: int
) -> tuple[float, float]:
    """Return the bytes that a microbatch's forward pass saves, and those of a block.

    The second number is the inside of the largest rematerialized block, which is there
    once, while its backward pass recomputes it.
    """
    worker, kept, once = compute_cost_model(case, device, pipe_rank), 0.0, 0.0
    on_host = host_activation_bytes(case, device)
    stages = case.placement.stages_of(pipe_rank) if case.stages else (0,)
    blocks = {block.name: block for block in case.profile.blocks}
    for stage in stages:
        inside, again = 0.0, dict[str, float]()
        for layer in case.stage_layers(stage):
            part = worker.work_fraction(layer)
            size = part * (layer.output_bytes + layer.inner_bytes)
            if case.is_rematerialized(layer):
                again[layer.block] = again.get(layer.block, 0.0) + size
                # Blocks' own outputs are counted below.
                waits = case.plan.memory_action(layer.name) is not None
                if waits and layer.name != layer.block:
                    inside += part * layer.output_bytes
            else:
                inside += size
        # A rematerialized block saves its output, of which what it was handed is saved
        # already; the last has no block to hand it to.
        outputs = sum(
            (block.output_bytes - block.passed_bytes)
            / case.block_sample_shards(block.name)
            for block in blocks.values()
            if block.name in again and block.cut_after
        )
        if stage:
            before = blocks[case.stages[stage - 1][-1]]
            outputs += before.passed_bytes / case.block_sample_shards(before.name)
        kept = max(kept, inside + outputs / case.microbatches - on_host)
        once = max(once, max(again.values(), default=0.0))
    if case.plan.remat:
        # Collectives of the tensor axis are not run again, so their results are saved;
        # for layers that are not recomputed they are among the sizes above. Half of the
        # all-reduces are of the backward pass, which saves nothing.
        rows = [
            row
            for row in case.ledgers[pipe_rank].rows
            if row.axes == ("tensor",) and row.layer not in case.saved_layers
        ]
        sums = sum(row.payload for row in rows if row.kind == "all-reduce")
        gathers = sum(row.payload for row in rows if row.kind == "all-gather")
        kept += (sums / 2 + gathers) / worker.microbatches / len(stages)
    return kept, once


def _weight_residuals(case: StepDescription, device: Device, pipe_rank: int) -> float:
    """Return the bytes that a backward pass keeps for the gradients of weights."""
    worker, most = compute_cost_model(case, device, pipe_rank), 0.0
    for stage in case.placement.stages_of(pipe_rank) if case.stages else ():
        sizes = (
            worker.work_fraction(layer)
            * weight_residual_bytes(layer, is_remade=case.is_rematerialized(layer))
            for layer in case.stage_layers(stage)
        )
        most = max(most, sum(sizes))
    return most


def weight_residual_bytes(layer: LayerProfile, *, is_remade: bool) -> int:
    """Return what a layer's backward pass keeps for the gradient of its weights.

    Args:
        layer: on the batch of its profile.
        is_remade: whether its activations are computed again in the backward pass.
    """
    if layer.kernel:
        # Inputs that are computed again are about as large as outputs.
        return layer.output_bytes * (1 + is_remade)
    # What has no FLOPs of its own is looked up in a table, or logits by a tied one.
    return 0 if layer.flops_forward else layer.output_bytes
