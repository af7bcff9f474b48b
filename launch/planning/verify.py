"""The first plans of a ranking, run for some steps or compiled for their target.

Predictions of many plans are nearer to each other than to what will be measured. What
is seen decides: steps that alternate on the devices that are here, or what the compiler
of a target says.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput, FatalError
from jaxdist.core.text.formatting import format_size
from jaxdist.launch.config.plan_file import plan_to_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.devices.prepare import find_platform
from jaxdist.launch.terminal.progress_bar import TaskProgress

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.launch.planning.layout_search import LayoutSearchResult
    from jaxdist.meshes.targets.target import Target
    from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan

DEFAULT_ROUNDS: Final = 5
MAX_USEFUL_ROUNDS: Final = 100
"""Plans that as many rounds could not tell apart are as good as each other."""
ESTIMATE_TOLERANCE: Final = 0.1
"""Steps that a compiler estimates are told apart where they differ by more."""
_RUN_VARIABLE_PREFIXES: Final = ("JAXDIST_", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
"""Beginnings of variables by which a process would be one of several."""


@dataclass(frozen=True, kw_only=True)
class VerificationQuery:
    """What `jaxdist plan verify` takes beside a `PlanQuery`."""

    verify: int | None = None
    """Number of plans that are run or compiled."""
    rounds: int = DEFAULT_ROUNDS
    """Times that the steps of each are timed, all plans in turn."""
    recalibrate: Path | None = None
    """File to write: the cluster with speeds fitted to the steps that were seen."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("first", self.verify, 2),
            ("rounds", self.rounds, 3),
        ):
            if value is not None and value < least:
                raise BadInput(
                    "there would be nothing to compare",
                    rule=f"--{name} is at least {least}",
                    values=f"--{name} {value}",
                    remedy=f"--{name} {least}",
                )


@dataclass(frozen=True, kw_only=True)
class VerifiedPlan:
    """A plan, and what was seen of it."""

    evaluated: "EvaluatedPlan"
    """The plan with its prediction."""
    rounds_s: tuple[float, ...] = ()
    """Seconds of a step in each round; of a target one, estimated, or none."""
    memory_bytes: int | None = None
    """Memory of a device, by the compiler."""
    refusal: str = ""
    """Why it cannot be run; empty where it can."""
    tie: str = ""
    """What would tell it from the first one; empty where it is told."""

    @property
    def step_s(self) -> float | None:
        """Seconds of a step: the median of the rounds."""
        ordered = sorted(self.rounds_s)
        return ordered[len(ordered) // 2] if ordered else None


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Plans in the order of what was seen of them, the best first."""

    machine: str
    """On what they ran, or the target."""
    is_compiled: bool
    """Whether they were compiled for a target, and not run."""
    plans: tuple[VerifiedPlan, ...]
    """Those that can be run, then those that cannot."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, in seconds and bytes."""
        return {
            "machine": self.machine,
            "compiled": self.is_compiled,
            "plans": [
                {
                    "plan": json.loads(one.evaluated.plan.to_json()),
                    "label": one.evaluated.plan.label,
                    "predicted_s": one.evaluated.prediction.step_s,
                    "step_s": one.step_s,
                    "rounds_s": list(one.rounds_s),
                    "memory_bytes": one.memory_bytes,
                    "refused": one.refusal or None,
                    "tie": one.tie or None,
                }
                for one in self.plans
            ],
        }


def plans_to_verify(
    plans: Sequence["EvaluatedPlan"], count: int
) -> list["EvaluatedPlan"]:
    """Return the plans that are worth a try: the best of each mesh first.

    Settings of one mesh differ by less than meshes do, so a mesh has a second plan only
    where there are no others left. Data parallelism, which people run without a search,
    takes the last place where it is not among them and may be the fastest.

    Args:
        plans: of a ranking, the best first.
        count: how many, at least two.
    """
    # In the order of the ranking: of each mesh its best plan, the best mesh first.
    meshes: dict[Any, EvaluatedPlan] = {}
    for one in plans:
        meshes.setdefault(one.plan.mesh, one)
    firsts = [*meshes.values()]
    others = [one for one in plans if one not in firsts]
    chosen = [*firsts, *others][:count]
    for one in firsts[count:]:
        alone = one.plan.mesh.data == one.plan.mesh.devices
        if alone and not one.prediction.is_slower_than(plans[0].prediction):
            chosen[-1] = one
    return chosen


def _check_machine(found: "LayoutSearchResult") -> None:
    """Refuse to run plans of a cluster on devices of another kind.

    Raises:
        BadInput: they are of another kind than those here.
    """
    here = find_platform(os.environ).name
    if found.cluster.device.is_cpu != (here == "cpu"):
        raise BadInput(
            "the plans cannot be tried here",
            rule="plan verify runs plans on devices of the kind that they are for, or "
            "compiles them for a --target",
            values=f"{found.cluster.name} has {found.cluster.device.name}, here is a "
            f"{here}",
            remedy=(
                "--target tpu-v5p:2x2x2, or another of docs/targets.md, in place of "
                "--cluster and --devices",
                "the same command on a machine of that cluster",
                "jaxdist plan layouts: the ranking alone",
            ),
        )


def run_plans(found: "LayoutSearchResult", query: VerificationQuery) -> Verification:
    """Run the first plans of a ranking for some steps, in turn.

    Raises:
        BadInput: devices or samples that are not here.
    """
    _check_machine(found)
    count = query.verify or 2
    chosen = plans_to_verify(found.ranking.plans, count)
    typed = found.query.overrides
    asked = {
        "experiment": found.query.experiment,
        # The plan's words last: of a key that comes twice the last one holds.
        "plans": [[*typed, *plan_to_overrides(one.plan)] for one in chosen],
        "devices": max(one.plan.mesh.devices for one in chosen),
        "rounds": query.rounds,
    }
    answer = _ask_timer(asked, len(chosen), query.rounds)
    seen = [
        VerifiedPlan(
            evaluated=one,
            rounds_s=tuple(rounds),
            memory_bytes=memory,
            refusal=refusal,
        )
        for one, rounds, memory, refusal in zip(
            chosen, answer["rounds"], answer["memory"], answer["refusals"], strict=True
        )
    ]
    return Verification(
        machine=answer["machine"], is_compiled=False, plans=rank_seen(seen)
    )


def recalibrate_by_steps(cluster: "Cluster", verification: Verification) -> "Cluster":
    """Return the cluster with speeds that explain the steps that were seen.

    Raises:
        BadInput: no plan ran.
    """
    from jaxdist.oracle.compare import (
        RunComparison,
        TermComparison,
        recalibrate_cluster,
    )

    seen = []
    for one in verification.plans:
        said, step = one.evaluated.prediction, one.step_s
        if step is None:
            continue
        low, high = said.interval_s
        compared = TermComparison(
            name="step", unit="s", predicted=said.step_s, measured=step
        )
        # Steps were timed and not profiled: two speeds are fitted to them, and no
        # terms.
        seen.append(
            RunComparison(
                run=one.evaluated.plan.label,
                prediction=said,
                step=compared,
                terms=(),
                in_interval=low <= step <= high,
            )
        )
    if not seen:
        raise BadInput(
            "there is nothing to recalibrate the cluster with",
            rule="speeds are fitted to steps that ran",
            values=f"0 of {len(verification.plans)} plans ran",
            remedy="--first 8, or what the refusals say",
        )
    return recalibrate_cluster(cluster, seen, "jaxdist plan verify, steps of")


def _ask_timer(asked: dict[str, Any], plans: int, rounds: int) -> dict[str, Any]:
    # The process is no rank of a run: it has the devices of this machine for itself.
    env = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(_RUN_VARIABLE_PREFIXES)
    }
    command = (sys.executable, "-m", "jaxdist.launch.planning.plan_timing")
    with (
        TaskProgress(plans + rounds, f"running {plans} plans") as progress,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(asked))
        child.stdin.close()
        answer: dict[str, Any] | None = None
        try:
            for line in child.stdout:
                # What jax or a network of one's own prints is no word of the timer.
                row = json.loads(line) if line.startswith("{") else {}
                if "ready" in row:
                    progress.advance(f"plan {row['ready']} of {plans} is compiled")
                elif "round" in row:
                    progress.advance(f"round {row['round']} of {rounds}")
                elif "refused" in row:
                    refused = row["refused"]
                    raise BadInput(refused.pop("what"), **refused)
                answer = row.get("answer", answer)
        finally:
            # After a refusal and Ctrl-C as well: it holds the devices.
            child.kill()
    if answer is None:
        raise FatalError("the process that runs plans ended without an answer")
    return answer


def rank_seen(plans: Sequence[VerifiedPlan]) -> tuple[VerifiedPlan, ...]:
    """Order plans by their seen steps, and say which are not told from the first.

    Plans that were run in turn are compared round by round: the mean difference must
    be more than the noise of the rounds allows, with 95 % (Student's t).

    Args:
        plans: each with as many rounds, or none where it was refused.
    """
    able = sorted(
        (one for one in plans if one.step_s is not None),
        key=lambda one: one.step_s or 0,
    )
    refused = [one for one in plans if one.step_s is None]
    ranked = able[:1]
    for one in able[1:]:
        rounds = rounds_needed(able[0].rounds_s, one.rounds_s)
        tie = ""
        if rounds > len(one.rounds_s):
            tie = f"--rounds {rounds}"
            if rounds > MAX_USEFUL_ROUNDS:
                tie = f"nothing within {MAX_USEFUL_ROUNDS} rounds: take either"
        ranked.append(replace(one, tie=tie))
    return (*ranked, *refused)


def rounds_needed(first: Sequence[float], other: Sequence[float]) -> int:
    """Return how many rounds tell two plans apart, if they go on as they did.

    Args:
        first: seconds of each round.
        other: of another plan in the same rounds.

    >>> rounds_needed([1.0, 1.1, 1.0, 1.1, 1.0], [2.0, 2.1, 2.2, 2.1, 2.0])
    2
    """
    from scipy.special import stdtrit

    # Paired by round: what else the machine did then met both plans, and cancels.
    differences = [b - a for a, b in zip(first, other, strict=True)]
    number = len(differences)
    mean = sum(differences) / number
    squares = sum((each - mean) ** 2 for each in differences)
    deviation = math.sqrt(squares / (number - 1))
    for rounds in range(2, MAX_USEFUL_ROUNDS + 1):
        # Half the width of the mean's 95 % interval after so many rounds.
        noise = float(stdtrit(rounds - 1, 0.975)) * deviation / math.sqrt(rounds)
        if abs(mean) > noise:
            return rounds
    return MAX_USEFUL_ROUNDS + 1


def compile_plans(
    found: "LayoutSearchResult",
    query: VerificationQuery,
    target: "Target",
    folder: Path | None,
) -> Verification:
    """Compile the first plans of a ranking for their target.

    Args:
        found: a ranking of the target's cluster and devices.
        query: how many of them.
        target: the machine, whose compiler is prepared.
        folder: where answers of compilers are kept; None: nowhere.

    Raises:
        BadInput: no compiler for the target.
    """
    from jaxdist.launch.analysis.target_compile import compile_for_target

    chosen = plans_to_verify(found.ranking.plans, query.verify or 2)
    seen = []
    with TaskProgress(len(chosen), f"compiling for {target}") as progress:
        for one in chosen:
            words = [*found.query.overrides, *plan_to_overrides(one.plan)]
            resolved = resolve_config(found.query.experiment, words)
            said = compile_for_target(resolved, target, folder)
            refusal = ""
            if not said.fits:
                refusal = f"needs {format_size(said.memory_bytes)} of "
                refusal += format_size(said.capacity_bytes)
            elif said.differences:
                refusal = said.differences[0]
            known = said.step_s is not None and not refusal
            seen.append(
                VerifiedPlan(
                    evaluated=one,
                    rounds_s=(said.step_s,) if known and said.step_s else (),
                    memory_bytes=said.memory_bytes,
                    refusal=refusal,
                )
            )
            progress.advance(one.plan.label)
    return Verification(
        machine=str(target), is_compiled=True, plans=rank_compiled(seen)
    )


def rank_compiled(plans: Sequence[VerifiedPlan]) -> tuple[VerifiedPlan, ...]:
    """Order compiled plans by their estimated steps, those that cannot run last.

    Where a compiler estimates no cycles the order stays that of predictions.

    Args:
        plans: in the order of their predictions.
    """
    able = [one for one in plans if not one.refusal]
    if all(one.step_s is not None for one in able):
        able.sort(key=lambda one: one.step_s or 0)
    ranked = able[:1]
    for one in able[1:]:
        first, step = able[0].step_s, one.step_s
        known = first is not None and step is not None
        limit = (first or 0.0) * (1 + ESTIMATE_TOLERANCE)
        is_told = known and (step or 0.0) > limit
        tie = "" if is_told else "plan verify on the machine itself"
        ranked.append(replace(one, tie=tie))
    return (*ranked, *(one for one in plans if one.refusal))
