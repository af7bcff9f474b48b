"""Ranking: layouts by their predicted step, and why each of the others lost."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.profile import Profile
from jaxdist.core.units import percent, size
from jaxdist.oracle.case import Case
from jaxdist.oracle.predict import Prediction, predict
from jaxdist.planner.coarse import estimate, totals

DESCRIBED: Final = 24
"""Layouts that are described in full, besides those of one axis alone."""
_SAFE: Final = 8
"""A step never needed this many times what its layers say: the most seen is 5.0."""
_NEAR: Final = 0.02
"""Layouts this close to the best of those with fewer axes are not better."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A layout that could be run."""

    plan: Plan
    """As `jaxdist train --plan` takes it."""
    prediction: Prediction
    """What it takes."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A layout that was described and is not at the top."""

    title: str
    """Of the layout."""
    step_s: float | None
    """Seconds; None where it cannot be run."""
    why: str
    """In a few words."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The layouts of some devices."""

    plans: tuple[Ranked, ...]
    """Those that fit, the fastest first."""
    lost: tuple[Lost, ...]
    """Well-known ones that are not the first: why not."""
    counted: int
    """Layouts that were ordered by the first estimate."""
    described: int
    """Of these, layouts that were described in full."""


def rank(
    candidates: Iterable[Plan],
    known: Iterable[Plan],
    describe: Callable[[Plan], Case],
    cluster: Cluster,
    *,
    profile: Profile,
    microbatches: int,
    dtype: str,
    room: float | None = None,
    trace: Callable[[Plan], Case] | None = None,
) -> Ranking:
    """Rank layouts.

    Args:
        candidates: layouts to choose from.
        known: layouts whose loss is explained; all of them are described.
        describe: gives a layout's case; it may refuse.
        cluster: machines.
        profile: of the network on a global batch, for the first estimate.
        microbatches: of a step.
        dtype: of the activations.
        room: bytes of a device; the device's own where not given.
        trace: gives a layout's case with what its traced program keeps; asked for the
            first of the ranking where memory may be short.

    Raises:
        BadInput: none of them can be run.
    """
    every = {plan.title: plan for plan in candidates}
    asked = {plan.title: plan for plan in known}
    network = totals(profile)
    order = sorted(
        every.values(),
        key=lambda plan: estimate(network, plan, cluster, microbatches, dtype),
    )
    chosen = {plan.title: plan for plan in order[:DESCRIBED]} | asked
    most = room or cluster.device.memory.value
    found: list[Ranked] = []
    refused: dict[str, str] = {}
    for title, plan in chosen.items():
        try:
            one = _described(plan, describe, cluster, most)
        except BadInput as error:
            refused[title] = error.what
            continue
        if one.prediction.memory_bytes <= most:
            found.append(one)
        else:
            over = one.prediction.memory_bytes - most
            refused[title] = f"out of memory by {size(over)}"
    if not found:
        raise _none(refused, most)
    found.sort(key=lambda one: one.prediction.step_s)
    _confirm(found, refused, trace, cluster, most)
    if not found:
        raise _none(refused, most)
    return Ranking(
        plans=tuple(found),
        lost=tuple(_losses(asked, found, refused)),
        counted=len(every),
        described=len(chosen),
    )


def _described(
    plan: Plan, describe: Callable[[Plan], Case], cluster: Cluster, most: float
) -> Ranked:
    """Predict a layout; one that does not fit computes its blocks' insides again."""
    prediction = predict(describe(plan), cluster)
    if prediction.memory_bytes > most and not plan.remat and plan.stages == 1:
        again = replace(plan, remat=True)
        return Ranked(plan=again, prediction=predict(describe(again), cluster))
    return Ranked(plan=plan, prediction=prediction)


def _confirm(
    found: list[Ranked],
    refused: dict[str, str],
    trace: Callable[[Plan], Case] | None,
    cluster: Cluster,
    most: float,
) -> None:
    """Strike layouts from the top until the first is one whose program fits."""
    while trace and found and _SAFE * found[0].prediction.memory_bytes > most:
        plan = found[0].plan
        prediction = predict(trace(plan), cluster)
        if prediction.safe_bytes <= most:
            found[0] = Ranked(plan=plan, prediction=prediction)
            return
        over = prediction.safe_bytes - most
        refused[plan.title] = f"out of memory by {size(over)}, traced"
        del found[0]


def _losses(
    asked: dict[str, Plan], found: list[Ranked], refused: dict[str, str]
) -> Iterable[Lost]:
    """Yield why each of the well-known layouts is not the first."""
    best = found[0]
    by_title = {one.plan.title: one for one in found}
    for title in asked:
        if title in refused:
            yield Lost(title=title, step_s=None, why=refused[title])
        elif title != best.plan.title:
            one = by_title[title].prediction
            yield Lost(title=title, step_s=one.step_s, why=reason(one, best.prediction))


def reason(one: Prediction, best: Prediction) -> str:
    """Say which term makes a layout slower than the best, most of all."""
    more = {
        term: took - best.terms_s.get(term, 0.0) for term, took in one.terms_s.items()
    }
    term = max(more, key=lambda name: more[name])
    share = percent(one.terms_s[term] / one.step_s, 0)
    return f"{term} takes {share} of the step"


def _none(refused: dict[str, str], most: float) -> BadInput:
    """Say that nothing can be run, with the smallest violation."""
    short = [why for why in refused.values() if why.startswith("out of memory")]
    return BadInput(
        "no layout can be run",
        rule=f"a layout splits the network and its batch, and fits into {size(most)}",
        values="; ".join(f"{title}: {why}" for title, why in [*refused.items()][:4]),
        remedy="more --memory or --devices, or a smaller data.batch"
        if short
        else "another data.batch, or another number of --devices",
    )
