"""Metering: bytes of an experiment's step: planned, as written and as compiled.

Where replicas train on their own, those of the steps that join them as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.meter import TrafficReport, build_traffic_report
from jaxdist.partition.external_step import stablehlo_collectives
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.train.layout import Layout
from jaxdist.train.program import trace_outer_step, trace_train_step


@dataclass(frozen=True, kw_only=True)
class OuterStepTraffic:
    """The bytes of an outer step."""

    sync: OuterSync
    """What replicas average in it, and when."""
    traffic: TrafficReport
    """What a device sends."""

    @property
    def title(self) -> str:
        """When it comes: `outer step, after step 50 of every 50`."""
        return (
            f"outer step, after step {self.sync.step_in_period} of every "
            f"{self.sync.sync_interval}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, bytes."""
        return {
            "after": self.sync.step_in_period,
            "every": self.sync.sync_interval,
            **self.traffic.tree(),
        }


def step_traffic(layout: Layout) -> TrafficReport:
    """Compile a training step and count the bytes that a device sends, three times.

    Nothing is trained or written.

    Args:
        layout: the task, its plan and mesh.
    """
    return _count_traffic(layout, trace_train_step(layout), layout.ledger)


def outer_step_traffic(layout: Layout) -> tuple[OuterStepTraffic, ...]:
    """Count the bytes of the outer steps of a layout in the same way."""
    return tuple(
        OuterStepTraffic(
            sync=sync,
            traffic=_count_traffic(
                layout, trace_outer_step(layout, sync), layout.ledger.sync_ledger(sync)
            ),
        )
        for sync in layout.outer_syncs
    )


def mean_step_bytes(
    step: TrafficReport, outer: Sequence[OuterStepTraffic]
) -> Mapping[str, float]:
    """Return what a device sends by the step over a whole period, in each column."""
    return {
        column: step.total(column)
        + sum(each.traffic.total(column) / each.sync.sync_interval for each in outer)
        for column in step.columns
    }


def _count_traffic(layout: Layout, traced: Any, ledger: Ledger) -> TrafficReport:
    lowered = traced.lower()
    compiled, mesh = lowered.compile(), dict(layout.mesh.shape)
    planned = ledger.payload_by_axes()
    size = layout.plan.mesh.size
    return build_traffic_report(
        mesh,
        compiled=read_collectives(compiled.as_text() or "", mesh),
        stablehlo=stablehlo_collectives(lowered, mesh),
        formula={(*key, size(*key[1])): payload for key, payload in planned.items()},
    )
