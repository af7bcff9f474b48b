"""Keeps: the bytes that a device needs for a step, by term.

state         exact: what the layout's shapes say
gathered      parameters that fsdp shares out, where stages put them together for a step
gradients     as many bytes as the parameters that a device works with: whole ones where
              microbatches add theirs up before fsdp shares them out
activations   sum over layers of share (output_bytes + inner_bytes) in a device's
              largest stage, once for every microbatch in flight; of blocks that are
              computed again what they hand on and what the tensor axis brought, and
              one block whole, once
batch         the device's samples, kept through the step
buffers       the largest array that a collective makes

Where the step was traced, the state, the batch and what the program has at most beside
them (`jaxdist/profile/xla_cpu/peak_memory.py`).
"""

from collections.abc import Container, Sequence

from jaxdist.core.cluster.device import Device
from jaxdist.core.plan import Plan
from jaxdist.oracle.compute_times import ComputeCostModel
from jaxdist.oracle.step_description import StepDescription
from jaxdist.pipeline.plan_schedule import device_work_counts, plan_schedule
from jaxdist.pipeline.stage_placement import stage_placement
from jaxdist.pipeline.sync_schedule import SyncSchedule


def trace_predicts_memory(plan: Plan, device: Device) -> bool:
    """Tell whether a traced step says what a device's compiler keeps of it.

    It is laid out as XLA's CPU backend does, which computes nothing again outside of
    loops. What compilers for accelerators keep of such a plan is what layers say.

    Args:
        plan: the layout.
        device: whose compiler.
    """
    return device.is_cpu or not plan.remat


def device_memory(case: StepDescription, device: Device) -> dict[str, int]:
    """Return bytes by term, on the device that needs most.

    Args:
        case: the step.
        device: any: its speed is not used.
    """
    if case.traced_bytes:
        return {**case.state_bytes, **case.traced_bytes}
    workers = [
        ComputeCostModel(
            case=case, device=device, ledger=ledger, microbatches=mine.microbatches
        )
        for ledger, mine in zip(
            case.ledgers, device_work_counts(case.plan, case.microbatches), strict=True
        )
    ]
    found = [_device_terms(case, workers, place) for place in range(len(workers))]
    return max(found, key=lambda terms: sum(terms.values()))


def _device_terms(
    case: StepDescription, workers: Sequence[ComputeCostModel], pipe_rank: int
) -> dict[str, int]:
    own, whole = (
        case.state_bytes.get("parameters", 0),
        _unsharded_parameter_bytes(case, pipe_rank),
    )
    terms = {
        **case.state_bytes,
        "gathered": whole if case.stages else 0,
        "gradients": max(own, whole) if case.microbatches > 1 else own,
        "activations": _activation_bytes(case, workers, pipe_rank),
        "batch": case.batch_bytes // case.plan.mesh.size(*case.plan.batch_axes),
        "buffers": _buffer_bytes(case, pipe_rank),
    }
    return {term: size for term, size in terms.items() if size}


def _activation_bytes(
    case: StepDescription, workers: Sequence[ComputeCostModel], pipe_rank: int
) -> int:
    """Return the bytes of what forward passes leave for backward passes."""
    kept, once = _saved_activations(case, workers[pipe_rank], pipe_rank)
    if case.plan.remat_until:
        # Stages are one program, and its arrays have room for what most is kept of.
        kept = max(
            _saved_activations(case, worker, k)[0] for k, worker in enumerate(workers)
        )
    return round(kept * _microbatches_in_flight(case, pipe_rank) + once)


def _saved_activations(
    case: StepDescription, worker: ComputeCostModel, pipe_rank: int
) -> tuple[float, float]:
    """Return what a microbatch's forward pass leaves, and the largest block's inside.

    The inside is that of a block which is computed again: it is there once.
    """
    kept, once = 0.0, 0.0
    stages = stage_placement(case.plan).stages_of(pipe_rank) if case.stages else (0,)
    for stage in stages:
        inside, again = 0.0, dict[str, float]()
        for layer in case.stage_layers(stage):
            size = worker.work_fraction(layer) * (
                layer.output_bytes + layer.inner_bytes
            )
            if case.is_rematerialized(layer):
                again[layer.block] = again.get(layer.block, 0.0) + size
            else:
                inside += size
        kept = max(kept, inside + _block_output_bytes(case, again))
        once = max(once, max(again.values(), default=0.0))
    if case.plan.remat:
        kept += _tensor_comm_bytes(case, pipe_rank) / worker.microbatches / len(stages)
    return kept, once


def _block_output_bytes(case: StepDescription, blocks: Container[str]) -> float:
    """Return the bytes that blocks hand on, of one microbatch; the last hands none."""
    own = (x for x in case.profile.blocks if x.name in blocks and x.cut_after)
    handed = sum(x.output_bytes / case.block_sample_shards(x.name) for x in own)
    return handed / case.microbatches


def _tensor_comm_bytes(case: StepDescription, pipe_rank: int) -> float:
    """Return the bytes that collectives of the tensor axis brought forward, in a step.

    They are not computed again: that would move them again. Of sums half are backward.
    What was brought to layers whose insides are kept is among those.
    """
    kept = {x.name for x in case.profile.layers if not case.is_rematerialized(x)}
    every = case.ledgers[pipe_rank].rows
    rows = [x for x in every if x.axes == ("tensor",) and x.layer not in kept]
    sums = sum(row.payload for row in rows if row.kind == "all-reduce")
    return sums / 2 + sum(row.payload for row in rows if row.kind == "all-gather")


def _microbatches_in_flight(case: StepDescription, pipe_rank: int) -> int:
    """Return how many microbatches wait for their backward pass at most."""
    if not case.stages:
        return 1
    found = plan_schedule(case.plan, case.microbatches)
    if isinstance(found, SyncSchedule):
        return found.in_flight(pipe_rank)
    return len(case.stages)


def _unsharded_parameter_bytes(case: StepDescription, pipe_rank: int) -> int:
    """Return the bytes of the parameters that fsdp shares out, as they are used."""
    if case.plan.zero != 3:
        return 0
    rows = (row for row in case.ledgers[pipe_rank].rows if row.what == "parameters")
    return sum(row.payload // row.arrays for row in rows)


def _buffer_bytes(case: StepDescription, pipe_rank: int) -> int:
    rows = case.ledgers[pipe_rank].rows
    return max((row.payload // max(1, row.arrays) for row in rows), default=0)
