"""Explain: the arithmetic of a prediction, to be checked by hand."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.text.formatting import duration, size
from jaxdist.oracle.collective_times import seconds, straight
from jaxdist.oracle.compute_times import ComputeCostModel, stage_seconds, worked_in
from jaxdist.oracle.link_groups import LinkGroup, group_of
from jaxdist.oracle.overlap import CollectiveOverlap, hidings
from jaxdist.oracle.predict import Prediction, moving, paced, packed
from jaxdist.oracle.stage_transfers import late_in
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.pipeline.plan_schedule import timetable, turns
from jaxdist.pipeline.stage_placement import places_of

_WHOLE: Final = 0.9995
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


def seconds_of(
    case: StepDescription, cluster: Cluster, made: Prediction
) -> Iterator[ExplanationLine]:
    """Yield the terms of a step; the indented ones are parts of what follows them.

    Args:
        case: the step.
        cluster: the machines.
        made: what was predicted for it.
    """
    yield from _blocks(case, cluster)
    busiest = paced(case, cluster).device
    yield from _ticks(case, cluster, made, busiest)
    ledger = moving(case, cluster, busiest)
    beside = hidings(case, cluster, ledger)
    for term, took in made.terms_s.items():
        if ", " in term:
            yield from _rows(ledger, term, cluster)
            yield from (_hidden(one, term) for one in beside if term in one.moved)
            yield ExplanationLine(name=term, formula="all of these", value=took)
    if "packing" in made.terms_s:
        yield _packing(case, cluster, made)
    if "update" in made.terms_s:
        yield _update(case, cluster, made)
    if "input" in made.terms_s:
        late = "samples / input rate of the hosts, less all of the above"
        yield ExplanationLine(name="input", formula=late, value=made.terms_s["input"])


def bytes_of(made: Prediction) -> Iterator[ExplanationLine]:
    """Yield the terms of the memory of a device."""
    for term, held in made.memory.items():
        yield ExplanationLine(name=term, formula=_KEPT.get(term, ""), value=held)


_KEPT = {
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


def _blocks(case: StepDescription, cluster: Cluster) -> Iterator[ExplanationLine]:
    """Yield what each block computes in one microbatch, on a device that has it."""
    device, dtype = cluster.device, case.dtype
    peak = device.peak(dtype).value
    taken = turns(case.plan, case.microbatches)
    for stage in range(max(1, len(case.stages))):
        place = places_of(case.plan).of_stages[stage][0]
        worker = ComputeCostModel(
            case=case,
            device=device,
            ledger=case.ledgers[place],
            microbatches=taken[place].micro,
        )
        flops: defaultdict[str, float] = defaultdict(float)
        took: defaultdict[str, float] = defaultdict(float)
        for layer in worked_in(case, stage):
            spent = worker.spent(layer)
            flops[layer.block] += worker.share(layer) * layer.flops
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


def _ticks(
    case: StepDescription, cluster: Cluster, made: Prediction, busiest: int
) -> Iterator[ExplanationLine]:
    """Yield what the busiest device computes, and what it waits."""
    plan, late = case.plan, 1 + cluster.jitter.value
    micro = turns(plan, case.microbatches)[busiest].micro
    stages = stage_seconds(case, cluster.device)
    own = places_of(plan).stages_of(busiest)
    each = sum(stages[stage].forward + stages[stage].backward for stage in own)
    of = f"stage {', '.join(map(str, own))}" if len(stages) > 1 else "all blocks"
    took = made.terms_s["compute"]
    share = took / (micro * each * late)
    rest = f" x {share:.3g} while others rest" if share < _WHOLE else ""
    yield ExplanationLine(
        name="compute",
        formula=f"{micro} microbatches x {duration(each)} of {of} x {late:.3g} "
        f"jitter{rest}",
        value=took,
    )
    if "bubble" in made.terms_s:
        count = timetable(plan, case.microbatches).exchanges
        skew = late_in(plan, cluster)
        last = f" ({duration(skew)} more where several do)" if skew else ""
        yield ExplanationLine(
            name="bubble",
            formula=f"{count} beats of {plan.pipe.schedule}, each as long as who "
            f"computes and talks longest in it{last}, less what the busiest does",
            value=made.terms_s["bubble"],
        )


def _rows(ledger: Ledger, term: str, cluster: Cluster) -> Iterator[ExplanationLine]:
    """Yield the collectives of a term, by kind, with what a message and a byte take."""
    found: defaultdict[tuple[str, tuple[str, ...]], list[PlannedCollective]] = (
        defaultdict(list)
    )
    for row in ledger.rows:
        if f"{row.what}, {' x '.join(row.axes)}" == term:
            found[row.kind, row.axes].append(row)
    for (kind, axes), rows in found.items():
        group = group_of(cluster, ledger.plan.placed, axes)
        took = sum(seconds(kind, row.payload, row.arrays, group) for row in rows)
        formula = _priced(kind, rows, group, took)
        yield ExplanationLine(name=f"  {kind}", formula=formula, value=took)


def _priced(
    kind: str, rows: Sequence[PlannedCollective], group: LinkGroup, took: float
) -> str:
    """Write the price of some collectives as start and bytes, and how far it bends."""
    arrays, payload = (sum(getattr(r, n) for r in rows) for n in ("arrays", "payload"))
    start = straight(kind, 0, arrays, group)
    whole = straight(kind, payload, arrays, group)
    sent = (whole - start) * group.rate
    line = group.line(kind)
    bend = f", x {took / whole:.3g} for their sizes" if line and line.bend else ""
    return (
        f"{arrays} arrays: {round(start / group.alpha) if group.alpha else 0} messages "
        f"x {duration(group.alpha)} + {size(round(sent))} sent of {size(payload)} / "
        f"{size(round(group.rate))}/s over {group.level}, {group.size} devices{bend}"
    )


def _hidden(one: CollectiveOverlap, term: str) -> ExplanationLine:
    """Write what of a term is hidden behind a pass: seconds that are taken off it."""
    whole, own = sum(one.moved.values()), one.moved[term]
    share = f" x {own / whole:.3g} of what moves" if len(one.moved) > 1 else ""
    return ExplanationLine(
        name=f"  behind the {one.behind} pass",
        formula=f"less {one.overlap:.3g} overlap{share} x {duration(one.beside)} in "
        f"which {duration(whole)} of collectives and {duration(one.computed)} of "
        "computing can go on at once, layer by layer",
        value=-one.by_term[term],
    )


def _packing(
    case: StepDescription, cluster: Cluster, made: Prediction
) -> ExplanationLine:
    known = cluster.device.packing
    ledger = max(case.ledgers, key=lambda one: packed(one, cluster))
    count: Counter[str] = Counter()
    for row in ledger.rows:
        count[row.what] += row.packed if row.what in known else 0
    each = (
        f"{many:,} numbers x {1e9 * known[way].value:.3g} ns of {way}"
        for way, many in count.items()
        if many
    )
    took = made.terms_s["packing"]
    return ExplanationLine(name="packing", formula=" + ".join(each), value=took)


def _update(
    case: StepDescription, cluster: Cluster, made: Prediction
) -> ExplanationLine:
    held = case.held.get("parameters", case.profile.parameter_bytes)
    rate = cluster.device.memory_bandwidth.value
    passes = made.terms_s["update"] * rate / held
    return ExplanationLine(
        name="update",
        formula=f"{passes:.3g} passes x {size(held)} of parameters / "
        f"{size(round(rate))}/s of memory",
        value=made.terms_s["update"],
    )
