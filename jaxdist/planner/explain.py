"""Explain: the arithmetic of a prediction, to be checked by hand."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.text.formatting import format_duration, format_size
from jaxdist.oracle.collective_times import alpha_beta_seconds, collective_seconds
from jaxdist.oracle.compute_times import (
    ComputeCostModel,
    compute_layers,
    stage_compute_times,
)
from jaxdist.oracle.link_groups import LinkGroup, link_group
from jaxdist.oracle.overlap import CollectiveOverlap, collective_overlaps
from jaxdist.oracle.predict import (
    Prediction,
    compression_seconds,
    pipeline_time,
    slowest_ledger,
)
from jaxdist.oracle.stage_transfers import superstep_skew
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.pipeline.plan_schedule import device_work_counts, plan_schedule
from jaxdist.pipeline.stage_placement import stage_placement

_FULL_SHARE: Final = 0.9995
"""Share of a kernel's seconds from which on it is said to be all of them."""


@dataclass(frozen=True, kw_only=True)
class ExplanationLine:
    """One line of an account."""

    name: str
    """What takes time or memory."""
    formula: str
    """How it is reckoned, with its numbers."""
    value: float
    """What comes of it: seconds, or bytes."""


def explain_seconds(
    case: StepDescription, cluster: Cluster, prediction: Prediction
) -> Iterator[ExplanationLine]:
    """Yield the terms of a step; the indented ones are parts of what follows them.

    Args:
        case: the step.
        cluster: the machines.
        prediction: what was predicted for it.
    """
    yield from _block_lines(case, cluster)
    busiest = pipeline_time(case, cluster).busiest_device
    yield from _compute_lines(case, cluster, prediction, busiest)
    ledger = slowest_ledger(case, cluster, busiest)
    beside = collective_overlaps(case, cluster, ledger)
    for term, took in prediction.terms_s.items():
        if ", " in term:
            yield from _collective_lines(ledger, term, cluster)
            yield from (
                _overlap_line(one, term)
                for one in beside
                if term in one.collective_seconds
            )
            yield ExplanationLine(name=term, formula="all of these", value=took)
    if "packing" in prediction.terms_s:
        yield _compression_line(case, cluster, prediction)
    if "update" in prediction.terms_s:
        yield _update_line(case, cluster, prediction)
    if "input" in prediction.terms_s:
        late = "samples / input rate of the hosts, less all of the above"
        yield ExplanationLine(
            name="input", formula=late, value=prediction.terms_s["input"]
        )


def bytes_of(prediction: Prediction) -> Iterator[ExplanationLine]:
    """Yield the terms of the memory of a device."""
    for term, held in prediction.memory_by_term.items():
        yield ExplanationLine(
            name=term, formula=_MEMORY_FORMULAS.get(term, ""), value=held
        )


_MEMORY_FORMULAS = {
    "parameters": "shapes of a device's shards",
    "statistics": "shapes of a device's shards",
    "optimizer": "shapes of a device's shards",
    "residuals": "shapes of a device's shards",
    "gathered": "a stage's parameters that fsdp shares out, for a step",
    "gradients": "as many as parameters, as they are used",
    "activations": "what layers make of a microbatch x microbatches in flight",
    "batch": "the samples of a device",
    "buffers": "the largest array of a collective",
    "temporaries": "the fullest moment of the traced step",
}


def _block_lines(case: StepDescription, cluster: Cluster) -> Iterator[ExplanationLine]:
    """Yield what each block computes in one microbatch, on a device that has it."""
    device, dtype = cluster.device, case.dtype
    peak = device.peak(dtype).value
    taken = device_work_counts(case.plan, case.microbatches)
    for stage in range(max(1, len(case.stages))):
        place = stage_placement(case.plan).stage_devices[stage][0]
        worker = ComputeCostModel(
            case=case,
            device=device,
            ledger=case.ledgers[place],
            microbatches=taken[place].microbatches,
        )
        flops: defaultdict[str, float] = defaultdict(float)
        took: defaultdict[str, float] = defaultdict(float)
        for layer in compute_layers(case, stage):
            spent = worker.microbatch_time(layer)
            flops[layer.block] += worker.work_fraction(layer) * layer.flops
            took[layer.block] += spent.forward + spent.backward
        for block, work in flops.items():
            share = work / peak / took[block] if took[block] else 0.0
            where = f"stage {stage}, " if case.stages else ""
            yield ExplanationLine(
                name=f"  {where}{block or 'the rest'}",
                formula=f"{work / 1e9:,.4g} GFLOP / ({peak / 1e12:,.4g} TFLOP/s x "
                f"{share:.3f} reached)",
                value=took[block],
            )


def _compute_lines(
    case: StepDescription, cluster: Cluster, prediction: Prediction, busiest_device: int
) -> Iterator[ExplanationLine]:
    """Yield what the busiest device computes, and what it waits."""
    plan, late = case.plan, 1 + cluster.jitter.value
    micro = device_work_counts(plan, case.microbatches)[busiest_device].microbatches
    stages = stage_compute_times(case, cluster.device)
    own = stage_placement(plan).stages_of(busiest_device)
    each = sum(stages[stage].forward + stages[stage].backward for stage in own)
    of = f"stage {', '.join(map(str, own))}" if len(stages) > 1 else "all blocks"
    took = prediction.terms_s["compute"]
    share = took / (micro * each * late)
    rest = f" x {share:.3g} while others rest" if share < _FULL_SHARE else ""
    yield ExplanationLine(
        name="compute",
        formula=f"{micro} microbatches x {format_duration(each)} of {of} x {late:.3g} "
        f"jitter{rest}",
        value=took,
    )
    if "bubble" in prediction.terms_s:
        count = plan_schedule(plan, case.microbatches).exchanges
        skew = superstep_skew(plan, cluster)
        last = f" ({format_duration(skew)} more where several do)" if skew else ""
        yield ExplanationLine(
            name="bubble",
            formula=f"{count} beats of {plan.pipe.schedule}, each as long as who "
            f"computes and talks longest in it{last}, less what the busiest does",
            value=prediction.terms_s["bubble"],
        )


def _collective_lines(
    ledger: Ledger, term: str, cluster: Cluster
) -> Iterator[ExplanationLine]:
    """Yield the collectives of a term, by kind, with what a message and a byte take."""
    found: defaultdict[tuple[str, tuple[str, ...]], list[PlannedCollective]] = (
        defaultdict(list)
    )
    for row in ledger.rows:
        if f"{row.what}, {' x '.join(row.axes)}" == term:
            found[row.kind, row.axes].append(row)
    for (kind, axes), rows in found.items():
        group = link_group(cluster, ledger.plan.placed, axes)
        took = sum(
            collective_seconds(kind, row.payload, row.arrays, group) for row in rows
        )
        formula = _collective_formula(kind, rows, group, took)
        yield ExplanationLine(name=f"  {kind}", formula=formula, value=took)


def _collective_formula(
    kind: str, rows: Sequence[PlannedCollective], group: LinkGroup, took: float
) -> str:
    """Write the price of some collectives as start and bytes, and how far it bends."""
    arrays, payload = (sum(getattr(r, n) for r in rows) for n in ("arrays", "payload"))
    start = alpha_beta_seconds(kind, 0, arrays, group)
    whole = alpha_beta_seconds(kind, payload, arrays, group)
    sent = (whole - start) * group.bandwidth
    line = group.collective_cost(kind)
    bend = f", x {took / whole:.3g} for their sizes" if line and line.bend else ""
    return (
        f"{arrays} arrays: {round(start / group.alpha) if group.alpha else 0} messages "
        f"x {format_duration(group.alpha)} + {format_size(round(sent))} sent of "
        f"{format_size(payload)} / "
        f"{format_size(round(group.bandwidth))}/s over {group.level}, {group.size} "
        f"devices{bend}"
    )


def _overlap_line(one: CollectiveOverlap, term: str) -> ExplanationLine:
    """Write what of a term is hidden behind a pass: seconds that are taken off it."""
    whole, own = sum(one.collective_seconds.values()), one.collective_seconds[term]
    share = (
        f" x {own / whole:.3g} of what moves" if len(one.collective_seconds) > 1 else ""
    )
    return ExplanationLine(
        name=f"  behind the {one.compute_pass} pass",
        formula=f"less {one.overlap_fraction:.3g} overlap{share} x "
        f"{format_duration(one.concurrent_seconds)} in "
        f"which {format_duration(whole)} of collectives and "
        f"{format_duration(one.compute_seconds)} of "
        "computing can go on at once, layer by layer",
        value=-one.overlapped_by_term[term],
    )


def _compression_line(
    case: StepDescription, cluster: Cluster, prediction: Prediction
) -> ExplanationLine:
    known = cluster.device.packing
    ledger = max(case.ledgers, key=lambda one: compression_seconds(one, cluster))
    count: Counter[str] = Counter()
    for row in ledger.rows:
        count[row.what] += row.packed if row.what in known else 0
    each = (
        f"{many:,} numbers x {1e9 * known[way].value:.3g} ns of {way}"
        for way, many in count.items()
        if many
    )
    took = prediction.terms_s["packing"]
    return ExplanationLine(name="packing", formula=" + ".join(each), value=took)


def _update_line(
    case: StepDescription, cluster: Cluster, prediction: Prediction
) -> ExplanationLine:
    held = case.state_bytes.get("parameters", case.profile.parameter_bytes)
    rate = cluster.device.memory_bandwidth.value
    passes = prediction.terms_s["update"] * rate / held
    return ExplanationLine(
        name="update",
        formula=f"{passes:.3g} passes x {format_size(held)} of parameters / "
        f"{format_size(round(rate))}/s of memory",
        value=prediction.terms_s["update"],
    )
