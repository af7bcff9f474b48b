"""A step compiled for a target: what the machine would hold, move and compute.

The compiler is the target's own and the program is the one that would run, so memory
and collectives are exact. Seconds are an estimate: the compiler's cycles for what a
core computes, and the cluster's latency and bandwidth for collectives that nothing
hides.
"""

import hashlib
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from jaxdist.collectives.hlo_collectives import CollectiveOp
from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.records import parse_record
from jaxdist.core.validation import json_text
from jaxdist.core.version import VERSION
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.run_folder.folder import read_json_object
from jaxdist.launch.training.job.abstract_step import StepDescriber, state_bytes
from jaxdist.launch.training.job.job import task_network
from jaxdist.meshes.targets.chips import TpuChip
from jaxdist.meshes.targets.compiler_options import program_options
from jaxdist.meshes.targets.compilers import quiet_stderr, target_devices
from jaxdist.meshes.targets.plugins import compiler_version
from jaxdist.meshes.targets.target import Target, check_target_size
from jaxdist.oracle.collective_times import alpha_beta_seconds
from jaxdist.oracle.link_groups import link_group
from jaxdist.oracle.offload import exposed_copy_seconds
from jaxdist.profile.compiled_schedule import CompiledSchedule, read_schedule
from jaxdist.profile.trace import modules_by_path
from jaxdist.train.layout import Layout
from jaxdist.train.peak_memory import host_bytes, trace_device_program
from jaxdist.train.program import LoweredProgram, Program, lower_program

# Two messages: `Used 20.1G of 15.7G hbm`, and `temporaries (20.1G) exceeds available
# HBM (15.7G)`.
_OUT_OF_MEMORY: Final = re.compile(
    r"(?:Used|temporaries \()\s*([\d.]+)([KMGT]?)\)? (?:of|exceeds available HBM \()"
    r"\s*([\d.]+)([KMGT]?)"
)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_ANSWER_FORMAT: Final = "passes"
"""What rows of layers have since there are kept answers; another word forgets them."""
_FORWARD_PRODUCTS: Final = 2 / 9
"""Share of the products of fused attention that the forward pass has: two of nine."""

NOT_ESTIMATED: Final = (
    "contention on links: a collective is priced by latency and bandwidth alone",
    "waiting for the input and for the slowest device",
)
"""What the estimate of a step leaves out."""
KERNEL_AT_PEAK: Final = (
    "what the kernel of attention takes beyond its products at the peak rate"
)
"""The same where attention is a kernel in Pallas."""


@dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """What the compiler of a target says of a step; plain values, as `--json` has them.

    None stands for what this compiler does not say.
    """

    experiment: str
    """Name of the experiment, or the path of its file."""
    target: str
    """As it was typed."""
    plan: str
    """The layout."""
    compiler: str
    """Package and version of the compiler."""
    options: Mapping[str, str]
    """Options that it was given."""
    fits: bool
    """Whether a device has the memory."""
    capacity_bytes: int
    """Memory of a device."""
    memory_bytes: int
    """Memory that the step needs on a device."""
    memory_terms: Mapping[str, int]
    """The same by what is kept: parameters, optimizer, ..., and the rest."""
    host_bytes: int
    """Memory of the host that the step needs for a device."""
    differences: Sequence[str]
    """What the program does and the plan does not."""
    rewrites: Sequence[Mapping[str, Any]]
    """What the compiler sends in another form, with the bytes of both."""
    layers: Sequence[Mapping[str, Any]]
    """Cycles, seconds, FLOPs, bytes and share of the peak of each layer, the longest
    first; of the cycles those of each pass."""
    cycles: int | None
    """Estimated cycles of a step."""
    compute_s: float | None
    """Seconds of these."""
    exposed_s: float | None
    """Seconds of collectives that nothing hides."""
    step_s: float | None
    """Seconds of a step: these, and those of copies to the host that nothing hides."""
    mfu: float | None
    """Model FLOPs utilisation: FLOPs of the network over those of the devices' peak."""
    collectives: Sequence[Mapping[str, Any]]
    """Bytes that a device sends by kind and axes, how many are asynchronous, hidden."""
    hidden_bytes: int
    """Bytes that a device sends while it computes."""
    exposed_bytes: int
    """Bytes for which it waits."""
    not_estimated: Sequence[str]
    """What the estimate leaves out."""
    compile_s: float
    """Seconds that the compiler took."""
    attention: str = ""
    """Kernel of its attention; empty where the network has none."""
    host_copy_s: float | None = None
    """Seconds of copies between device and host that nothing hides."""
    has_logit_chunks: bool = False
    """Whether the loss multiplies out logits in chunks of tokens."""

    @property
    def is_as_planned(self) -> bool:
        """Whether the program is the plan's, and fits."""
        return self.fits and not self.differences


def lay_out_on_target(resolved: ResolvedConfig, target: Target) -> Layout:
    """Lay an experiment's step out on the devices of a target.

    Raises:
        BadInput: a plan of another size, a precision that the target lacks, or no
            compiler for it.
    """
    devices = _target_devices(resolved.config, target)
    return StepDescriber(resolved.config).layout(resolved.config.plan, devices)


def _target_devices(config: Experiment, target: Target) -> Sequence[Any]:
    """Return the devices of a target that an experiment can be compiled for."""
    check_target_size(target, config.plan)
    if config.precision == "float64" and target.platform == "tpu":
        raise BadInput(
            "a TPU has no float64",
            rule="precision is float32 or bfloat16 on a TPU",
            values=f"precision = float64, --target {target}",
            remedy="precision=bfloat16",
        )
    return target_devices(target)


def compile_for_target(
    resolved: ResolvedConfig,
    target: Target,
    folder: Path | None,
    *,
    fresh: bool = False,
) -> CompiledStep:
    """Compile an experiment's step for a target; nothing is run.

    Args:
        resolved: the experiment.
        target: the machine.
        folder: where answers are kept, by program, options and compiler; None: nowhere.
        fresh: whether to compile again where there is an answer.

    Raises:
        BadInput: a plan of another size, or no compiler for the target.
    """
    config = resolved.config
    devices = _target_devices(config, target)
    describer = StepDescriber(config, target.platform)
    # Lowered before answers are looked up: an answer is named by its program.
    lowered = lower_program(describer.layout(config.plan, devices))
    options = program_options(lowered.layout)
    path = None
    if folder is not None:
        path = folder / f"{_digest(lowered, target, options)}.json"
        if not fresh and (kept := _read_answer(path)) is not None:
            # Two experiments may have one program: the answer takes the name that was
            # asked for.
            return replace(kept, experiment=resolved.experiment)
    answer = _compile(resolved.experiment, target, lowered, options, describer)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json_text(asdict(answer), indent=2) + "\n")
    return answer


def _digest(
    lowered: LoweredProgram, target: Target, options: Mapping[str, str | bool]
) -> str:
    """Return a name for the answer of a compiler: all that it depends on."""
    # The plan as well: differences are those between the program and the plan's ledger.
    parts = (
        lowered.step.as_text(),
        lowered.layout.plan.to_json(),
        str(target),
        # Whether the program fits is judged by the cluster's figure.
        str(target.device.memory.value),
        compiler_version(target.platform),
        repr(sorted(options.items())),
        VERSION,
        _ANSWER_FORMAT,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _read_answer(path: Path) -> CompiledStep | None:
    # A damaged file, or one of another version, is an answer that is not there.
    with suppress(BadInput, OSError):
        found = read_json_object(path)
        return None if found is None else parse_record(CompiledStep, found, "an answer")
    return None


def _compile(
    experiment: str,
    target: Target,
    lowered: LoweredProgram,
    options: Mapping[str, str | bool],
    describer: StepDescriber,
) -> CompiledStep:
    layout, started = lowered.layout, time.perf_counter()
    capacity = round(target.device.memory.value)
    # What is known before compiling, and all that is where the program does not fit.
    empty = CompiledStep(
        experiment=experiment,
        target=str(target),
        plan=layout.plan.label,
        compiler=compiler_version(target.platform),
        options={name: str(value) for name, value in options.items()},
        fits=False,
        capacity_bytes=capacity,
        memory_bytes=0,
        memory_terms=state_bytes(layout),
        host_bytes=0,
        differences=[],
        rewrites=[],
        layers=[],
        cycles=None,
        compute_s=None,
        exposed_s=None,
        step_s=None,
        mfu=None,
        collectives=[],
        hidden_bytes=0,
        exposed_bytes=0,
        not_estimated=list(NOT_ESTIMATED),
        compile_s=0.0,
        attention=lowered.attention,
        has_logit_chunks=bool(lowered.layout.logits_product),
    )
    try:
        with quiet_stderr():
            program = lowered.compile(options)
    except Exception as error:
        # The compiler of TPUs refuses a program that is larger than the memory, and
        # says both sizes; jax hands its message on in an exception of its own.
        found = _OUT_OF_MEMORY.search(str(error))
        if found is None:
            raise
        used, limit = (round(float(found[i]) * _UNITS[found[i + 1]]) for i in (1, 3))
        # Either all that is used, or the temporaries beside the arguments.
        used += sum(empty.memory_terms.values()) * ("temporaries" in found[0])
        return replace(
            empty,
            memory_bytes=used,
            # The compiler may leave less of the memory than the chip has.
            capacity_bytes=min(limit, capacity),
            compile_s=time.perf_counter() - started,
        )
    took = time.perf_counter() - started

    layers = frozenset(modules_by_path(task_network(layout.task)))
    schedule = read_schedule(program.compiled_step.as_text() or "", layers)
    # Compilers of GPUs estimate no cycles: without a clock all seconds stay None.
    clock = target.chip.clock.value if isinstance(target.chip, TpuChip) else None
    peak = target.device.peak(_peak_dtype(target, layout)).value
    left_out: tuple[str, ...] = NOT_ESTIMATED
    if clock is not None and lowered.attention_flops:
        # The compiler has no estimate of a kernel that was written in Pallas.
        spent, forward, backward = (
            Counter(x)
            for x in (
                schedule.layer_cycles,
                schedule.forward_cycles,
                schedule.backward_cycles,
            )
        )
        for layer, flops in lowered.attention_flops.items():
            # In cycles at the peak rate: the least that the kernel takes.
            kernel = round(flops * clock / peak)
            spent[layer] += kernel
            forward[layer] += round(_FORWARD_PRODUCTS * kernel)
            backward[layer] += kernel - round(_FORWARD_PRODUCTS * kernel)
        schedule = replace(
            schedule,
            layer_cycles=spent,
            forward_cycles=forward,
            backward_cycles=backward,
        )
        left_out = (*left_out, KERNEL_AT_PEAK)
    sizes = program.compiled_step.memory_analysis()
    rows = _collective_rows(target, layout, program, schedule)
    known = clock is not None and schedule.cycles > 0
    compute = schedule.cycles / clock if clock and known else None
    exposed = sum(row["exposed_s"] for row in rows)
    on_host = int(sizes.host_temp_size_in_bytes) + int(
        sizes.host_argument_size_in_bytes
    )
    copies = _host_copy_seconds(target, on_host, compute) if compute else None
    step = compute + exposed + (copies or 0.0) if compute is not None else None
    ideal = describer.profile.ideal_seconds(layout.plan.mesh.devices, peak)
    return replace(
        empty,
        fits=program.memory_bytes <= capacity,
        memory_bytes=program.memory_bytes,
        host_bytes=on_host,
        differences=[
            *map(str, program.differences),
            *map(str, _host_differences(layout, sizes.host_temp_size_in_bytes)),
        ],
        rewrites=[asdict(rewrite) for rewrite in program.rewrites],
        layers=_layer_rows(layout, schedule, clock, peak) if known else [],
        cycles=schedule.cycles if known else None,
        compute_s=compute,
        exposed_s=exposed if known else None,
        host_copy_s=copies,
        step_s=step,
        mfu=ideal / step if step else None,
        collectives=rows,
        not_estimated=list(left_out),
        hidden_bytes=sum(row["hidden_bytes"] for row in rows),
        exposed_bytes=sum(row["sent_bytes"] - row["hidden_bytes"] for row in rows),
        compile_s=took,
    )


def _host_differences(layout: Layout, held: int) -> list[BadInput]:
    """Return what is on the host in the program, where the plan says otherwise."""
    planned = host_bytes(trace_device_program(layout)) if layout.plan.offload else 0
    if held == planned:
        return []
    return [
        BadInput(
            "the compiled step does not keep on the host what the plan says",
            rule="plan.offload has activations of blocks in loops wait there",
            values=f"{held:,} B in the program, {planned:,} B in the plan",
        )
    ]


def _host_copy_seconds(target: Target, copied: int, compute: float) -> float:
    """Return the seconds of copying so many bytes out and in that nothing hides."""
    link = target.cluster.host_link
    if not copied or link is None:
        return 0.0
    # A forward pass is a third of the work; the copies back have the rest.
    return exposed_copy_seconds(copied / link.value, compute / 3, 2 * compute / 3)


def _peak_dtype(target: Target, layout: Layout) -> str:
    """Return the dtype whose peak a step is held against."""
    # Matrix units of TPUs multiply bfloat16, also float32 by default; those of GPUs
    # tf32.
    dtype = np.dtype(layout.task.dtype).name
    if dtype in target.device.flops and target.platform != "tpu":
        return "tf32" if dtype == "float32" else dtype
    return "bfloat16"


def _layer_rows(
    layout: Layout, schedule: CompiledSchedule, clock: float | None, peak: float
) -> list[dict[str, Any]]:
    flops: dict[str, int] = defaultdict(int)
    for ledger in layout.ledgers:
        for layer, count in ledger.layer_flops.items():
            flops[layer] += count
    rows = []
    # A loop over equal blocks has the scopes of its first block: its sums are dealt out
    # to all of them.
    moved = layout.unroll_layers(schedule.layer_bytes)
    spent = layout.unroll_layers(schedule.layer_cycles)
    forward = layout.unroll_layers(schedule.forward_cycles)
    backward = layout.unroll_layers(schedule.backward_cycles)
    for layer, cycles in sorted(spent.items(), key=lambda x: -x[1]):
        seconds = cycles / (clock or 1.0)
        work = flops.get(layer, 0)
        rows.append(
            {
                "layer": layer,
                "cycles": cycles,
                "forward_cycles": forward[layer],
                "backward_cycles": backward[layer],
                "seconds": seconds,
                "flops": work,
                "bytes": moved[layer],
                "utilisation": work / (seconds * peak) if seconds and work else None,
            }
        )
    return rows


def _collective_rows(
    target: Target, layout: Layout, program: Program, schedule: CompiledSchedule
) -> list[dict[str, Any]]:
    """Sum the collectives of a program by kind and axes, with what is hidden."""
    clock = target.chip.clock.value if isinstance(target.chip, TpuChip) else None
    sums: dict[tuple[str, tuple[str, ...]], dict[str, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for move in program.collectives:
        share, seconds = _hidden_share(target, layout, move, schedule, clock)
        row = sums[move.kind, move.axes]
        row["count"] += move.trip_count
        row["payload_bytes"] += move.payload
        row["sent_bytes"] += move.wire_bytes
        row["async_count"] += move.trip_count * move.is_async
        row["hidden_bytes"] += share * move.wire_bytes
        row["link_s"] += seconds
        row["exposed_s"] += (1 - share) * seconds
    return [
        {
            "kind": kind,
            "axes": list(axes),
            **{k: n if k.endswith("_s") else round(n) for k, n in row.items()},
        }
        for (kind, axes), row in sorted(
            sums.items(), key=lambda item: -item[1]["sent_bytes"]
        )
    ]


def _hidden_share(
    target: Target,
    layout: Layout,
    move: CollectiveOp,
    schedule: CompiledSchedule,
    clock: float | None,
) -> tuple[float, float]:
    """Return the share of a collective that computing hides, and its seconds."""
    seconds = 0.0
    if move.axes:
        group = link_group(target.cluster, layout.plan.placed, move.axes)
        seconds = alpha_beta_seconds(move.kind, move.payload, move.trip_count, group)
    # Cycles beside one run of the collective; without estimates, instructions.
    work = schedule.work_beside.get(move.instruction_name, 0)
    if not move.is_async or not work:
        return 0.0, seconds
    # Where the compiler estimates nothing, some work beside it is all that is known.
    if clock is None or not seconds:
        return 1.0, seconds
    return min(1.0, move.trip_count * work / clock / seconds), seconds
