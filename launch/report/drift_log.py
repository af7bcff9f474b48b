"""Drifts: what `drift.jsonl` says of a run: a drift, its reason, the plan for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from jaxdist.launch.run_folder.jsonl import JsonRow
from jaxdist.launch.training.adapt.plan_search import RestartDecision


@dataclass(frozen=True, kw_only=True)
class PlanChange:
    """A drift, and what came of it."""

    step: int
    """Steps that were done when it was decided."""
    time: float
    """When, Unix seconds."""
    pace_s: float | None = None
    """Median step before the drift; None where processes were lost or came back."""
    drifted_s: float | None = None
    """Step while it drifted."""
    why: str = ""
    """What had changed; empty where nothing was found."""
    old: str = ""
    """Label of the plan until then; empty where no other one was sought."""
    new: str = ""
    """Label of the plan that was found."""
    changed: bool = False
    """Whether the run went on under it."""
    text: str = ""
    """What was decided, for a person."""


def read_plan_changes(rows: Iterable[JsonRow]) -> tuple[PlanChange, ...]:
    """Join the lines of `drift.jsonl`: a drift, its reason, and the plan for it."""
    found: list[JsonRow] = []
    for row in rows:
        kind = row.get("kind")
        begins = kind == "drift" or (kind == "reason" and _is_complete(found))
        if begins or not found:
            found.append({})
        found[-1] |= _parse_row(row)
    return tuple(PlanChange(**one) for one in found if {"step", "time"} <= one.keys())


def _is_complete(found: Sequence[JsonRow]) -> bool:
    return not found or "old" in found[-1] or bool(found[-1].get("why"))


def _parse_row(row: JsonRow) -> dict[str, Any]:
    """Return what a line says of a change."""
    told = {key: row[key] for key in ("step", "time") if key in row}
    match row.get("kind"):
        case "drift":
            return told | {"pace_s": row.get("before"), "drifted_s": row.get("seconds")}
        case "reason":
            return told | {"why": row.get("why", "")}
        case "plan":
            choice = RestartDecision(
                **{one.name: row[one.name] for one in fields(RestartDecision)}
            )
            return told | {
                "old": choice.stays,
                "new": choice.other,
                "changed": choice.changes,
                "text": choice.text,
            }
    return {}
