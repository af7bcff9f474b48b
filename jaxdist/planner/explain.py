"""The arithmetic of a prediction, line by line, so that it can be checked by hand."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.text.formatting import format_duration, format_size
from jaxdist.oracle.collective_times import alpha_beta_seconds, collective_seconds
from jaxdist.oracle.compute_times import (
    stage_compute_times,
    stage_cost_model,
)
from jaxdist.oracle.link_groups import LinkGroup, link_group
from jaxdist.oracle.overlap import collective_overlaps
from jaxdist.oracle.predict import (
    Prediction,
    compression_seconds,
    least_memory_bandwidth,
    rank_compressions,
    slowest_traffic,
)
from jaxdist.oracle.rank_devices import rank_devices
from jaxdist.oracle.stage_times import superstep_skew
from jaxdist.oracle.step_description import FROZEN_TERM, StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.pipeline.plan_schedule import plan_schedule

_FULL_SHARE: Final = 0.9995
"""Share of a kernel's seconds from which on it is written as all of them."""


@dataclass(frozen=True, kw_only=True)
class ExplanationLine:
    """One line of an explanation."""

    name: str
    """What takes time or memory."""
    formula: str
    """The formula, with its numbers."""
    value: float
    """The result: seconds, or bytes."""


def explain_seconds(
    case: StepDescription, cluster: Cluster, prediction: Prediction
) -> Iterator[ExplanationLine]:
    """Yield the terms of a step; indented lines are parts of what follows them.

    Args:
        case: the step.
        cluster: the machines.
        prediction: of that step on that cluster.
    """
    yield from _compute_lines(case, cluster, prediction)
    traffic = slowest_traffic(case, cluster, prediction.busiest_device)
    overlaps = collective_overlaps(case, cluster, traffic[0][1])
    terms = prediction.terms_s
    for term, took in terms.items():
        # Terms of collectives are named `what, axes`; the others follow below.
        if ", " not in term:
            continue
        yield from _collective_lines(traffic, term, cluster)
        for one in overlaps:
            if term not in one.collective_seconds:
                continue
            # Collectives that overlap one pass share its hidden seconds by their own.
            parts = one.collective_seconds
            whole, own = sum(parts.values()), parts[term]
            share = f" x {own / whole:.3g} of what moves" if len(parts) > 1 else ""
            yield ExplanationLine(
                name=f"  behind the {one.compute_pass} pass",
                formula=f"less {one.overlap_fraction:.3g} overlap{share} x "
                f"{format_duration(one.concurrent_seconds)} in "
                f"which {format_duration(whole)} of collectives and "
                f"{format_duration(one.compute_seconds)} of "
                "computing can go on at once, layer by layer",
                value=-one.overlapped_by_term[term],
            )
        yield ExplanationLine(name=term, formula="all of these", value=took)

    if "packing" in terms:
        # The rank that compresses longest decides, as in the prediction.
        ledger, kind = max(
            rank_compressions(case, cluster),
            key=lambda own: compression_seconds(*own),
        )
        known, count = kind.packing, Counter[str]()
        for row in ledger.rows:
            count[row.what] += row.packed if row.what in known else 0
        each = (
            f"{many:,} numbers x {1e9 * known[way].value:.3g} ns of {way}"
            for way, many in count.items()
            if many
        )
        yield ExplanationLine(
            name="packing", formula=" + ".join(each), value=terms["packing"]
        )
    if "update" in terms:
        held = case.state_bytes.get("parameters", case.profile.parameter_bytes)
        # All devices end the update together, so the slowest memory decides.
        rate = least_memory_bandwidth(rank_devices(cluster, case.plan.placed))
        yield ExplanationLine(
            name="update",
            formula=f"{terms['update'] * rate / held:.3g} passes x {format_size(held)} "
            f"of parameters / {format_size(round(rate))}/s of memory",
            value=terms["update"],
        )
    if "input" in terms:
        # What waits for samples is what the hosts need beyond the step.
        late = "samples / input rate of the hosts, less all of the above"
        yield ExplanationLine(name="input", formula=late, value=terms["input"])


def bytes_of(prediction: Prediction) -> Iterator[ExplanationLine]:
    """Yield the terms of the memory of a device."""
    for term, held in prediction.memory_by_term.items():
        formula = _MEMORY_FORMULAS.get(term, "")
        yield ExplanationLine(name=term, formula=formula, value=held)


_MEMORY_FORMULAS: Final = {
    "parameters": "shapes of a device's shards",
    FROZEN_TERM: "shapes of a device's shards",
    "statistics": "shapes of a device's shards",
    "optimizer": "shapes of a device's shards",
    "residuals": "shapes of a device's shards",
    "gathered": "a stage's parameters that fsdp shares out, for a step",
    "gradients": "as many as parameters, as they are used",
    "activations": "what layers make of a microbatch x microbatches in flight",
    "weight residuals": "gradients of layers' outputs x backward passes whose "
    "gradients of weights are to come",
    "batch": "the samples of a device",
    "buffers": "the largest array of a collective",
    "temporaries": "the fullest moment of the traced step",
}


def _compute_lines(
    case: StepDescription, cluster: Cluster, prediction: Prediction
) -> Iterator[ExplanationLine]:
    """Yield the blocks of each stage, the busiest device's compute, and its bubble."""
    # One microbatch of each block, on a device that has it.
    # All stages are listed, so that an uneven cut can be seen.
    for stage in case.stage_range:
        worker = stage_cost_model(case, cluster, stage)
        device = worker.slowest_device(case.compute_layers(stage))
        peak = device.peak(case.dtype).value
        kind = f" of {device.name}" if len(cluster.kinds) > 1 else ""
        flops: defaultdict[str, float] = defaultdict(float)
        spent_s: defaultdict[str, float] = defaultdict(float)
        for layer in case.compute_layers(stage):
            spent = worker.microbatch_time(layer)
            flops[layer.block] += worker.work_fraction(layer) * layer.flops
            spent_s[layer.block] += spent.forward + spent.backward
        for block, work in flops.items():
            # The share of the peak is what makes a prediction plausible or not.
            share = work / peak / spent_s[block] if spent_s[block] else 0.0
            where = f"stage {stage}, " if case.stages else ""
            yield ExplanationLine(
                name=f"  {where}{block or 'the rest'}",
                formula=f"{work / 1e9:,.4g} GFLOP / ({peak / 1e12:,.4g} TFLOP/s x "
                f"{share:.3f} reached{kind})",
                value=spent_s[block],
            )

    plan, late = case.plan, 1 + cluster.jitter.value
    stages = stage_compute_times(case, cluster)
    micro = case.work_counts[prediction.busiest_device].microbatches
    own = case.placement.stages_of(prediction.busiest_device)
    # A device of an interleaved schedule has several stages.
    each = sum(stages[stage].forward + stages[stage].backward for stage in own)
    of = f"stage {', '.join(map(str, own))}" if len(stages) > 1 else "all blocks"
    took = prediction.terms_s["compute"]
    # Collectives beside computing slow it, by the interference of the device.
    hidden = prediction.overlapped_s.items()
    kinds = rank_devices(cluster, plan.placed)
    lost = max(one.interference.value for one in kinds) * sum(
        seconds for term, seconds in hidden if term != "offload"
    )
    slower = f" + {format_duration(lost)} lost beside collectives" if lost else ""
    # Where devices share cores, kernels are faster while other stages rest.
    share = (took - lost) / (micro * each * late)
    rest = f" x {share:.3g} while others rest" if share < _FULL_SHARE else ""
    yield ExplanationLine(
        name="compute",
        formula=f"{micro} microbatches x {format_duration(each)} of {of} x {late:.3g} "
        f"jitter{rest}{slower}",
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
    traffic: Iterable[tuple[int, Ledger]], term: str, cluster: Cluster
) -> Iterator[ExplanationLine]:
    """Yield the collectives of a term by kind, as latency and bytes of a straight line.

    The ratio of the predicted time to that line is written where sizes were measured.
    """
    # By kind and group: rows of one term may be sent over links of several ranks.
    found: defaultdict[tuple[str, LinkGroup], list[PlannedCollective]]
    found = defaultdict(list)
    for rank, ledger in traffic:
        for row in ledger.rows:
            if f"{row.what}, {' x '.join(row.axes)}" == term:
                group = link_group(cluster, ledger.plan.placed, row.axes, rank)
                found[row.kind, group].append(row)
    for (kind, group), rows in found.items():
        took = sum(
            collective_seconds(kind, row.payload, row.arrays, group) for row in rows
        )
        arrays = sum(row.arrays for row in rows)
        payload = sum(row.payload for row in rows)
        # The line is split by asking for no bytes: what is left are those.
        start = alpha_beta_seconds(kind, 0, arrays, group)
        whole = alpha_beta_seconds(kind, payload, arrays, group)
        messages = round(start / group.alpha) if group.alpha else 0
        sent = format_size(round((whole - start) * group.bandwidth))
        line = group.collective_cost(kind)
        bend = f", x {took / whole:.3g} for their sizes" if line and line.bend else ""
        yield ExplanationLine(
            name=f"  {kind}",
            formula=f"{arrays} arrays: {messages} messages x "
            f"{format_duration(group.alpha)} + {sent} sent of {format_size(payload)} / "
            f"{format_size(round(group.bandwidth))}/s over {group.level}, {group.size} "
            f"devices{bend}",
            value=took,
        )
