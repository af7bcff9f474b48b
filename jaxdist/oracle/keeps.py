"""Keeps: the bytes that a device needs for a step, by term.

state         exact: what the layout's shapes say
gradients     as many bytes as the parameters that a device works with
activations   sum over layers of share output_bytes, once for every microbatch in
              flight; with remat those between blocks, and one block whole
batch         the device's samples, kept through the step
buffers       the largest array that a collective makes

Where the step was traced, the state, the batch and what the program has at most beside
them (`jaxdist/profile/heap.py`).
"""

from collections.abc import Mapping

from jaxdist.core.device import Device
from jaxdist.oracle.case import Case
from jaxdist.oracle.work import Worker
from jaxdist.pipeline.places import places_of
from jaxdist.pipeline.planned import timetable, turns
from jaxdist.pipeline.schedule import Schedule


def kept(case: Case, device: Device) -> dict[str, int]:
    """Return bytes by term, on the device that needs most.

    Args:
        case: the step.
        device: any: its speed is not used.
    """
    if case.traced:
        return {**case.held, **case.traced}
    found = [_on(case, device, place) for place in range(len(case.ledgers))]
    return max(found, key=lambda terms: sum(terms.values()))


def _on(case: Case, device: Device, place: int) -> dict[str, int]:
    mine = turns(case.plan, case.microbatches)[place].micro
    worker = Worker(
        case=case, device=device, ledger=case.ledgers[place], microbatches=mine
    )
    terms = {
        **case.held,
        "gradients": case.held.get("parameters", 0),
        "activations": _activations(case, worker, place),
        "batch": case.batch_bytes // case.plan.mesh.size(*case.plan.batch_axes),
        "buffers": _buffers(case, place),
    }
    return {term: size for term, size in terms.items() if size}


def _activations(case: Case, worker: Worker, place: int) -> int:
    """Return the bytes of what forward passes leave for backward passes."""
    total = 0.0
    for stage in places_of(case.plan).stages_of(place) if case.stages else (0,):
        blocks: dict[str, float] = {}
        for layer in case.layers_of(stage):
            size = worker.share(layer) * layer.output_bytes
            blocks[layer.block] = blocks.get(layer.block, 0.0) + size
        total += _remade(case, blocks) if case.plan.remat else sum(blocks.values())
    return round(total * _in_flight(case, place))


def _remade(case: Case, blocks: Mapping[str, float]) -> float:
    """Return what is kept where the insides of blocks are computed again."""
    between = sum(
        block.output_bytes / (case.shards * case.microbatches)
        for block in case.profile.blocks
        if block.name in blocks
    )
    return between + max(blocks.values(), default=0.0)


def _in_flight(case: Case, place: int) -> int:
    """Return how many microbatches wait for their backward pass at most."""
    if not case.stages:
        return 1
    found = timetable(case.plan, case.microbatches)
    if isinstance(found, Schedule):
        return found.in_flight(place)
    return len(case.stages)


def _buffers(case: Case, place: int) -> int:
    rows = case.ledgers[place].rows
    return max((row.payload for row in rows), default=0)
