"""Ranks the plans of a table by predicted time: `jaxdist plan table`."""

import itertools
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jaxdist.calibrate.fitted_constants import FittedConstants, read_constants
from jaxdist.calibrate.formats.calculon import CalculonFormat
from jaxdist.calibrate.formats.rates import MEGATRON_CONSTANTS, megatron_rates
from jaxdist.calibrate.formats.vtrain import VTrainFormat
from jaxdist.calibrate.measured_rows import initial_values
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.core.text.parsing import parse_bytes
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.plan_rows import PlanRow, read_plan_rows
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.launch.terminal.run_summary import NumberColumn, pluralize

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.core.cluster import Cluster
    from jaxdist.core.plan import Plan
    from jaxdist.launch.config.resolve import ResolvedConfig
    from jaxdist.launch.training.job.abstract_step import StepDescriber

_PROGRAMS: Final = ("jaxdist", "megatron")


@dataclass(frozen=True, kw_only=True)
class TableQuery:
    """What `jaxdist plan table` takes; quantities are text with their units."""

    table: Path
    """CSV file of plans."""
    experiment: str
    """Name or file."""
    overrides: Sequence[str] = ()
    """`key=value`, of all rows."""
    cluster: str | None = None
    """Name or file."""
    what_if: Sequence[str] = ()
    """Changed numbers of the cluster: `levels.net.bandwidth=1gbit`."""
    memory: str | None = None
    """Bytes of a device; the cluster's by default."""
    program: str = "jaxdist"
    """Whose program runs the plans: `jaxdist`, or `megatron` for GPT-2."""
    rates: Path | None = None
    """Constants that `jaxdist calibrate fit` wrote, for `megatron`."""
    traced: bool = False
    """Whether the memory is read off each step's own program."""
    top: int = 10
    """Rows that are shown."""


@dataclass(frozen=True, kw_only=True)
class RankedPlan:
    """A row of the table, with what is predicted of it."""

    row: PlanRow
    step_s: float | None = None
    """Seconds of a step; None where the plan cannot be."""
    memory_bytes: float | None = None
    """Bytes of the fullest device."""
    memory_capacity: float | None = None
    """Bytes of its memory; None: as the cluster's device has."""
    terms_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by term."""
    reason: str = ""
    """Why it is rejected; empty of a plan that fits."""
    rank: int | None = None
    """Place among those that fit, from 1."""
    plan: "Plan | None" = None
    """What `jaxdist train` runs."""
    resolved: "ResolvedConfig | None" = None
    """The experiment with the row's settings."""

    @property
    def fits(self) -> bool:
        """Whether it can be run."""
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, in seconds and bytes."""
        row = self.row
        return {
            "row": row.number,
            **row.mesh,
            "microbatch": row.microbatch,
            "cuts": list(row.cuts),
            "settings": dict(row.settings),
            "labels": dict(row.labels),
            "rank": self.rank,
            "fits": self.fits,
            "reason": self.reason,
            "step_s": self.step_s,
            "memory_bytes": self.memory_bytes,
            "terms_s": dict(self.terms_s),
            "measured_s": row.measured_s,
            "failed": row.failed,
        }


@dataclass(frozen=True, kw_only=True)
class TableScore:
    """What was predicted of a table, beside what was measured; shares of 1."""

    measured: int
    """Rows with a time."""
    spearman: float | None
    """Correlation of ranks of predicted and measured seconds; None below two rows."""
    regret: float | None
    """How much slower than the fastest measured plan the first one of the ranking is;
    None where that failed."""
    mape: float | None
    """Mean of |predicted - measured| / measured."""
    failed: int
    """Rows that were tried and could not be run."""
    failed_rejected: float | None
    """Share of these that are rejected."""
    running_rejected: float | None
    """Share of the rows with a time that are rejected, wrongly."""


@dataclass(frozen=True, kw_only=True)
class TableRanking:
    """The plans of a table, those that fit first, fastest first."""

    query: TableQuery
    cluster: "Cluster"
    """The machines."""
    plans: tuple[RankedPlan, ...]
    """All rows."""
    memory_limit: float
    """Bytes of a device."""
    search_s: float
    """Seconds that the ranking took."""

    @property
    def score(self) -> TableScore | None:
        """The ranking beside what was measured; None where nothing was."""
        return score_ranking(self.plans)

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as plain values, in seconds and bytes."""
        score = self.score
        return {
            "table": str(self.query.table),
            "experiment": self.query.experiment,
            "cluster": self.cluster.name,
            "program": self.query.program,
            "memory_limit": self.memory_limit,
            "rows": len(self.plans),
            "fitting": sum(one.fits for one in self.plans),
            "score": None if score is None else dict(vars(score)),
            "plans": [one.to_dict() for one in self.plans],
            "search_seconds": self.search_s,
        }


Predictor = Callable[["ResolvedConfig", PlanRow], RankedPlan]
"""Predicts a row, whose settings are resolved."""


def rank_table(query: TableQuery) -> TableRanking:
    """Rank the plans of a table.

    Raises:
        BadInput: no such table, experiment or cluster. What is wrong with one plan is
            its reason to be rejected.
    """
    if query.cluster is None:
        raise BadInput(
            "nothing says on which machine",
            rule="the plans of a table are ranked on a cluster",
            values=f"jaxdist plan table {query.table} {query.experiment}, no --cluster",
            remedy="--cluster abci, or a file as docs/clusters.md has it",
        )
    if query.rates is not None and query.program != "megatron":
        raise BadInput(
            "--rates is for --program megatron",
            rule="fitted constants are rates of Megatron's kernels and links",
            values=f"--rates {query.rates}, --program {query.program}",
            remedy="--program megatron",
        )
    if query.program not in _PROGRAMS:
        near = did_you_mean(query.program, _PROGRAMS)
        raise BadInput(
            f"no program {query.program}",
            rule=f"--program is {' or '.join(_PROGRAMS)}",
            values=f"--program {query.program}",
            remedy=f"--program {near or _PROGRAMS[0]}",
        )
    rows = read_plan_rows(query.table)
    # Without any row first: a wrong experiment ends the command, a wrong row is only
    # rejected.
    resolved = resolve_config(query.experiment, query.overrides, is_mesh_searched=True)

    from jaxdist.meshes.clusters.load import load_cluster
    from jaxdist.meshes.clusters.what_if import apply_overrides

    cluster = apply_overrides(load_cluster(query.cluster), query.what_if)
    if query.program == "megatron":
        cluster.only_device("--program megatron")
    # Of several kinds of devices each plan has the memory of those that it stands on.
    given = None if query.memory is None else parse_bytes(query.memory, "--memory")
    begun = time.perf_counter()
    predictor = (
        _megatron_predictor(resolved, cluster, query.rates)
        if query.program == "megatron"
        else _Describers(cluster, traced=query.traced)
    )
    found = [_predict_row(query, row, cluster, given, predictor) for row in rows]
    # Plans that fit come first, then those that are too large, then those that cannot
    # be; each by time.
    found.sort(
        key=lambda one: (
            not one.fits,
            one.step_s is None,
            one.step_s or 0.0,
            one.row.number,
        )
    )
    ranked = [
        replace(one, rank=place if one.fits else None)
        for place, one in enumerate(found, 1)
    ]
    return TableRanking(
        query=query,
        cluster=cluster,
        plans=tuple(ranked),
        memory_limit=min(kind.memory.value for kind in cluster.kinds)
        if given is None
        else given,
        search_s=time.perf_counter() - begun,
    )


def _predict_row(
    query: TableQuery,
    row: PlanRow,
    cluster: "Cluster",
    given: float | None,
    predictor: Predictor,
) -> RankedPlan:
    """Predict a row; what is wrong with it is the reason of its rejection."""
    from jaxdist.core.plan_resize import check_device_count

    words = (*query.overrides, *row.layout)
    try:
        # Resolved twice: how many microbatches a row means follows from its batch and
        # its shards, which only a resolved configuration knows.
        resolved = resolve_config(query.experiment, words, is_mesh_searched=True)
        config = resolved.config
        more = row.overrides(config.data.batch, config.plan.batch_shards)
        resolved = resolve_config(query.experiment, (*query.overrides, *more))
        check_device_count(resolved.config.plan, cluster)
        found = predictor(resolved, row)
    except BadInput as error:
        why = f"{error.what}: {error.values}" if error.values else error.what
        return RankedPlan(row=row, reason=why)
    # --memory wins; where kinds of devices differ, the plan's own say the rest.
    limit = given or found.memory_capacity or cluster.device.memory.value
    over = (found.memory_bytes or 0.0) - limit
    if over > 0:
        room = f"{format_size(found.memory_bytes or 0.0)} of {format_size(limit)}"
        found = replace(found, reason=f"out of memory by {format_size(over)}: {room}")
    return found


class _Describers:
    """Predicts the step of jaxdist: its network is read once for all of its plans."""

    def __init__(self, cluster: "Cluster", *, traced: bool) -> None:
        self.cluster = cluster
        self.traced = traced
        self._known: dict[tuple[str, ...], StepDescriber] = {}

    def __call__(self, resolved: "ResolvedConfig", row: PlanRow) -> RankedPlan:
        """Predict a row."""
        from jaxdist.launch.training.job.abstract_step import StepDescriber
        from jaxdist.oracle.memory import trace_predicts_memory
        from jaxdist.oracle.predict import predict

        config, device = resolved.config, self.cluster.device
        # Settings that are no plan's make another network, or another batch.
        key = tuple(
            f"{k}={v}" for k, v in row.settings.items() if not k.startswith("plan.")
        )
        if key not in self._known:
            self._known[key] = StepDescriber(config, device.platform)
        describer = self._known[key]
        # Written out: a plan file is run with the number that it was ranked with.
        plan = config.plan
        micro = plan.microbatches or config.optim.accumulate
        plan = replace(plan, microbatches=micro)
        if row.cuts:
            blocks = tuple(block.name for block in describer.profile.blocks)
            cuts = row.cut_blocks(blocks)
            plan = replace(plan, pipe=replace(plan.pipe, cuts=cuts))
        traced = self.traced and trace_predicts_memory(plan, device, describer.profile)
        case = describer.describe_traced(plan) if traced else describer.describe(plan)
        made = predict(case, self.cluster)
        return RankedPlan(
            row=row,
            step_s=made.step_s,
            # With the margin that decides whether a plan fits.
            memory_bytes=made.traced_bytes_with_margin
            if traced
            else made.untraced_bytes_with_margin,
            memory_capacity=made.memory_capacity,
            terms_s=made.terms_s,
            plan=plan,
            resolved=resolved,
        )


def _megatron_predictor(
    resolved: "ResolvedConfig", cluster: "Cluster", fitted: Path | None
) -> Predictor:
    """Return what predicts plans as Megatron runs them.

    Its large matmuls reach what the cluster's own curve says they do; the other rates
    are those before any fit, whose origins `MEGATRON_CONSTANTS` has, or fitted ones.

    Args:
        resolved: the experiment.
        cluster: the machines.
        fitted: file of fitted constants; on another cluster than theirs the curve
            still says what matmuls reach, since that is a number of a card.

    Raises:
        BadInput: the network is no GPT-2, the device has no peak in float16, or the
            file has no constants of Megatron's.
    """
    from jaxdist.models.transformer import Gpt2
    from jaxdist.oracle.published.megatron.memory import fullest_stage_terms
    from jaxdist.oracle.published.megatron.model import MegatronLayout, MegatronModel
    from jaxdist.oracle.published.megatron.step import megatron_step

    if resolved.config.model.name != "gpt2_small":
        raise BadInput(
            f"{resolved.config.model.name} is no GPT-2",
            rule="--program megatron predicts GPT-2 of any size",
            values=resolved.describe("model.name"),
            remedy="gpt2_small model.depth=24 model.embed=1024 model.heads=16",
        )
    # Refused here where the device has no such peak, and not row by row.
    cluster.device.peak("float16")
    values = initial_values(MEGATRON_CONSTANTS)
    own_matmul = max(share for _, share in cluster.device.efficiency.points)
    if fitted is not None:
        constants = _read_megatron_constants(fitted)
        values |= constants.values
        if constants.cluster == cluster.name:
            own_matmul = values["matmul"]
    values["matmul"] = own_matmul
    rates = megatron_rates(values)

    def predict_row(own: "ResolvedConfig", row: PlanRow) -> RankedPlan:
        config, plan = own.config, own.config.plan
        sizes, mesh = Gpt2.sizes(config.model), plan.mesh
        # Megatron pads the rows of a split table to a multiple of 128 on every device.
        multiple = 128 * mesh.tensor
        model = MegatronModel(
            hidden=sizes.embed,
            heads=sizes.heads,
            layers=sizes.depth,
            sequence=config.data.context or sizes.context,
            vocabulary=-(-sizes.vocabulary // multiple) * multiple,
            feedforward=sizes.hidden,
            head_size=sizes.embed // sizes.heads,
        )
        # Cuts are at blocks of the network; stages of Megatron count Transformer
        # layers.
        layers = tuple(f"block{i}" for i in range(model.layers))
        counts: tuple[int, ...] = ()
        if row.cuts:
            names = ("embed", *layers, "head")
            places = [_layers_before(cut, layers) for cut in row.cut_blocks(names)]
            ends = (0, *places, model.layers)
            counts = tuple(b - a for a, b in itertools.pairwise(ends))
            if min(counts) < 1:
                raise BadInput(
                    "a stage has no layers",
                    rule="cuts are in order, with a layer or more between them",
                    values=f"layers of stages {counts}",
                    remedy="other cuts",
                )
        elif model.layers % mesh.pipe:
            # Dealt out as evenly as whole layers can be.
            ends = tuple(
                model.layers * stage // mesh.pipe for stage in range(mesh.pipe + 1)
            )
            counts = tuple(b - a for a, b in itertools.pairwise(ends))
        layout = MegatronLayout(
            tensor=mesh.tensor,
            data=plan.batch_shards,
            pipe=mesh.pipe,
            batch=config.data.batch,
            # Samples of one replica in a microbatch.
            microbatch=config.data.batch
            // plan.batch_shards
            // max(1, plan.microbatches or config.optim.accumulate),
            recompute="full" if plan.remat else "none",
            sequence_parallel=plan.tensor_strategy == "sequence",
            stage_layers=counts,
        )
        terms = megatron_step(model, layout, cluster).terms(rates)
        return RankedPlan(
            row=row,
            step_s=sum(terms.values()),
            # Stages run at once on devices that are alike, so the fullest decides.
            memory_bytes=sum(fullest_stage_terms(model, layout).values()),
            terms_s={name: took for name, took in terms.items() if took},
            plan=plan,
            resolved=own,
        )

    return predict_row


def _read_megatron_constants(path: Path) -> FittedConstants:
    """Return constants that were fitted to rows of Megatron's, of either format."""
    try:
        return read_constants(path, VTrainFormat())
    except BadInput:
        return read_constants(path, CalculonFormat())


def _layers_before(cut: str, layers: tuple[str, ...]) -> int:
    """Return how many Transformer layers are in front of a cut."""
    known = {"embed": 0, "head": len(layers)}
    known |= {name: place for place, name in enumerate(layers)}
    if cut in known:
        return known[cut]
    near = did_you_mean(cut, [*known])
    raise BadInput(
        f"no block {cut}",
        rule="cuts are blocks of the network",
        values=f"{layers[0]} to {layers[-1]}",
        remedy=f"did you mean {near}?" if near else layers[0],
    )


def score_ranking(plans: Sequence[RankedPlan]) -> TableScore | None:
    """Compare a ranking with what was measured; None where nothing was.

    Args:
        plans: in the order of the ranking.
    """
    ran = [one for one in plans if one.row.measured_s is not None]
    failed = [one for one in plans if one.row.failed]
    if not (ran or failed):
        return None
    # Rows without a prediction are in neither correlation nor error; as rejected they
    # count below.
    pairs = np.array(
        [(one.step_s, one.row.measured_s) for one in ran if one.step_s is not None]
    ).reshape(-1, 2)
    # Of the plans whose outcome is known the first one would be run.
    first = next((x for x in plans if x.fits and (x in ran or x in failed)), None)
    regret = None
    if first is not None and first.row.measured_s is not None:
        fastest = min(one.row.measured_s or 0.0 for one in ran)
        regret = first.row.measured_s / fastest - 1
    return TableScore(
        measured=len(ran),
        spearman=rank_correlation(pairs) if len(pairs) > 1 else None,
        regret=regret,
        mape=float(np.mean(np.abs(pairs[:, 0] / pairs[:, 1] - 1)))
        if len(pairs)
        else None,
        failed=len(failed),
        failed_rejected=float(np.mean([not one.fits for one in failed]))
        if failed
        else None,
        running_rejected=float(np.mean([not one.fits for one in ran])) if ran else None,
    )


def rank_correlation(pairs: np.ndarray[Any, Any]) -> float | None:
    """Return Spearman's rank correlation, equal values at their mean rank.

    Args:
        pairs: [row, 2].

    Returns:
        From -1 to 1; None where one side is all alike.

    >>> round(rank_correlation(np.array([[1.0, 10.0], [2.0, 30.0], [3.0, 20.0]])), 6)
    0.5
    """
    ranks = []
    for column in pairs.T:
        _, place, count = np.unique(column, return_inverse=True, return_counts=True)
        last = np.cumsum(count)
        # Equal values share the mean of the ranks last - count + 1 to last.
        ranks.append((last - (count - 1) / 2)[place])
    centred = [rank - rank.mean() for rank in ranks]
    sizes = [float(np.sqrt((one**2).sum())) for one in centred]
    if not all(sizes):
        return None
    return float((centred[0] * centred[1]).sum() / (sizes[0] * sizes[1]))


def print_table_ranking(out: "Console", found: TableRanking) -> None:
    """Print the plans that fit, those that do not with the reason, and the score."""
    query, plans = found.query, found.plans
    fitting = [one for one in plans if one.fits]
    out.print(
        f"{query.experiment} on {found.cluster.name}, {query.table.name}: "
        f"{len(fitting)} of {pluralize(len(plans), 'plan')} fit, as {query.program} "
        f"runs them\n  ranked in {format_duration(found.search_s)}, "
        f"{format_size(found.memory_limit)} a device",
        soft_wrap=True,
    )
    # A misspelt column would else change nothing without a word.
    if labels := list(dict.fromkeys(key for one in plans for key in one.row.labels)):
        out.print(f"  not read as a part of plans: {', '.join(labels)}", soft_wrap=True)
    out.print()
    is_measured = any(one.row.measured_s is not None or one.row.failed for one in plans)
    if fitting:
        memory = NumberColumn(round(found.memory_limit), "B")
        extra = ("measured, ms",) * is_measured
        heads = ("row", "step, ms", *extra, f"memory, {memory.unit}")
        rows = make_table("", "plan", *heads, right=("", *heads))
        for one in fitting[: query.top]:
            taken = one.row.measured_s
            seen = "failed" if one.row.failed else ""
            seen = seen if taken is None else f"{1e3 * taken:,.1f}"
            rows.add_row(
                str(one.rank),
                one.row.title,
                str(one.row.number),
                f"{1e3 * (one.step_s or 0.0):,.1f}",
                *(seen,) * is_measured,
                memory.format(round(one.memory_bytes or 0.0)),
            )
        print_table(out, rows)
    lost = [one for one in plans if not one.fits]
    if lost:
        rows = make_table("rejected", "row", "why", right=("row",))
        for one in lost[: query.top]:
            rows.add_row(one.row.title, str(one.row.number), one.reason)
        print_table(out, rows)
    if (score := found.score) is not None:
        _print_score(out, score)
    words = [str(query.table), query.experiment, *query.overrides]
    words += ["--cluster", str(query.cluster)]
    words += [word for change in query.what_if for word in ("--what-if", change)]
    words += ["--memory", query.memory] if query.memory else []
    if query.program != "jaxdist":
        words += ["--program", query.program]
    words += ["--rates", str(query.rates)] if query.rates else []
    words += ["--traced"] * query.traced
    print_next_commands(out, f"jaxdist plan table {shlex.join(words)} --json")


def _print_score(out: "Console", score: TableScore) -> None:
    def share(value: float | None) -> str:
        return "unknown" if value is None else format_percent(value)

    if score.measured:
        spearman = "unknown" if score.spearman is None else f"{score.spearman:.3f}"
        first = "the first plan failed"
        if score.regret is not None:
            first = f"the first plan is {share(score.regret)} slower than the fastest"
        out.print(
            f"  measured {pluralize(score.measured, 'plan')}: Spearman {spearman}, "
            f"mean error {share(score.mape)}; {first}",
            soft_wrap=True,
        )
    if score.failed:
        out.print(
            f"  failed   {pluralize(score.failed, 'plan')}: "
            f"{share(score.failed_rejected)} rejected",
            soft_wrap=True,
        )
    if score.running_rejected:
        out.print(
            f"  wrongly  {share(score.running_rejected)} of those that ran rejected"
        )
    out.print()
