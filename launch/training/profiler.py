"""Profiling: a trace of a window of steps, and what each step in it was spent on."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jax

from jaxdist.collectives.hlo_program import OP_NAME, split_computations
from jaxdist.core.files import write_atomic
from jaxdist.core.step_breakdown import (
    BUBBLE,
    COMPRESSION,
    COMPUTE,
    UPDATE,
    WAIT,
    StepBreakdown,
)
from jaxdist.launch.devices.prepare import available_cores
from jaxdist.launch.training.job.job import task_network
from jaxdist.partition.gradient_buckets import BUCKET_SCOPE
from jaxdist.pipeline.async_executor import UPDATE_SCOPE as UPDATE_OF_STAGES
from jaxdist.profile.compiled_schedule import scope_owner
from jaxdist.profile.trace import modules_by_path
from jaxdist.profile.trace_breakdown import (
    InstructionLabel,
    device_breakdowns,
    read_spans,
)
from jaxdist.train.step import UPDATE_SCOPE as UPDATE_OF_STEP

if TYPE_CHECKING:
    from jaxdist.train.program import Program


StepWindow = tuple[int, int]
"""First and last step to profile, counted from 1."""


def trace_steps(
    batches: "Iterator[Mapping[str, jax.Array]]",
    start_step: int,
    window: StepWindow | None,
    folder: Path,
) -> "Iterator[Mapping[str, jax.Array]]":
    """Pass batches on, and trace while those of the window are trained on.

    Args:
        batches: the batches of a run from step `start_step` on.
        start_step: steps done before.
        window: steps to trace; None passes batches through.
        folder: where the trace goes.
    """
    if window is None:
        yield from batches
        return
    # Calls of Python are left out: to trace each makes a step several times longer.
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    tracing = False
    try:
        for step, batch in enumerate(batches, start=start_step + 1):
            if step == window[0]:
                jax.profiler.start_trace(str(folder), profiler_options=options)
                tracing = True
            if step == window[1] + 1 and tracing:
                jax.profiler.stop_trace()
                tracing = False
            yield batch
    finally:
        # Also a run that ends inside of the window leaves a whole trace.
        if tracing:
            jax.profiler.stop_trace()


_INSTRUCTION: Final = re.compile(r"^\s*(?:ROOT\s+)?%?([\w.\-]+) = .+? ([\w\-]+)\(")
_STAGE: Final = re.compile(r"\bstage(\d+)\.(forward|backward|weights)/while/body/")
"""Scope of a stage's work where it is done; outside the loop it is asked about."""
_CONTAINER_OPS: Final = frozenset(
    ("while", "call", "conditional", "parameter", "constant")
)
"""Instructions that run others, or nothing."""
_UPDATE_SCOPES: Final = frozenset((UPDATE_OF_STEP, UPDATE_OF_STAGES))


def write_step_breakdown(
    program: "Program", traces: Path, start_time: float, output_path: Path
) -> bool:
    """Write what the newest trace says of the steps in it.

    Args:
        program: what ran.
        traces: folder of the profiler.
        start_time: Unix seconds; an older trace is of another attempt.
        output_path: file of the record.

    Returns:
        Whether there was a trace with a whole step in it.
    """
    # The folder keeps the traces of earlier attempts, whose step may be another one.
    found = [p for p in traces.rglob("*.xplane.pb") if p.stat().st_mtime >= start_time]
    if not found:
        return False
    # A trace has the events of all programs; the name of the module picks the step's.
    text = program.compiled_step.as_text() or ""
    newest = max(found, key=lambda path: path.stat().st_mtime)
    spans = read_spans(newest, text.partition("HloModule ")[2].partition(",")[0])
    devices = device_breakdowns(spans, instruction_terms(program))
    if devices:
        # Emulated devices share the cores: a reader needs both numbers to judge waits.
        cores = available_cores()
        record = StepBreakdown(
            cores=cores, processes=jax.process_count(), devices=devices
        )
        write_atomic(output_path, record.to_json())
    return bool(devices)


def instruction_terms(program: "Program") -> dict[str, InstructionLabel]:
    """Return for each instruction of a compiled step which part of the step it is.

    A trace knows instructions of HLO by their names. Where they come from is in their
    metadata: `op_name` has the scopes of jax, networks and this package, such as
    `jit(step)/transpose(jvp(block1))/conv/...`.
    """
    layers = frozenset(modules_by_path(task_network(program.layout.task)))
    text, found = program.compiled_step.as_text() or "", {}
    for line in (x for part in split_computations(text).values() for x in part):
        said = _INSTRUCTION.match(line)
        if said is None or said[2] in _CONTAINER_OPS:
            continue
        match = OP_NAME.search(line)
        name = match[1] if match else ""
        scopes = re.split(r"[/():]+", name)
        if _UPDATE_SCOPES.intersection(scopes):
            found[said[1]] = InstructionLabel(term=UPDATE)
        elif BUCKET_SCOPE in name:
            found[said[1]] = InstructionLabel(term=COMPRESSION)
        else:
            # jax calls the backward pass `transpose`.
            stage = _STAGE.search(name)
            found[said[1]] = InstructionLabel(
                term=COMPUTE,
                layer=scope_owner(name, layers),
                is_backward="transpose" in scopes,
                stage_work=(stage[2], int(stage[1])) if stage else None,
            )

    # Collectives are named as the plan names them. Several rows of the ledger may have
    # one kind and the same axes: then the scopes say which one it is, and the size.
    rows = [row for ledger in program.layout.ledgers for row in ledger.rows]
    for move in program.collectives:
        name, scopes = move.op_name, re.split(r"[/():]+", move.op_name)
        best = max(
            (r for r in rows if (r.kind, r.axes) == (move.kind, move.axes)),
            key=lambda r: (name.count(r.layer), scopes.count(r.what), r.payload),
            default=None,
        )
        what = best.what if best else move.kind
        found[move.instruction_name] = InstructionLabel(
            term=f"{what}, {' x '.join(move.axes) or 'unknown devices'}",
            wait_term=BUBBLE if "pipe" in move.axes else WAIT,
        )
    return found
