"""Counts the bytes that a training step sends: planned, as written and as compiled.

Where replicas train on their own, those of the outer steps that average them as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.meter import TrafficReport, build_traffic_report
from jaxdist.collectives.stablehlo_collectives import read_stablehlo
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.train.layout import Layout
from jaxdist.train.program import trace_outer_step, trace_train_step


@dataclass(frozen=True, kw_only=True)
class OuterStepTraffic:
    """The bytes of an outer step, in which replicas average."""

    sync: OuterSync
    """What replicas average in it, and when."""
    traffic: TrafficReport
    """What a device sends."""

    @property
    def title(self) -> str:
        """When it is due: `outer step, after step 50 of every 50`."""
        return (
            f"outer step, after step {self.sync.step_in_period} of every "
            f"{self.sync.sync_interval}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, in bytes."""
        return {
            "after": self.sync.step_in_period,
            "every": self.sync.sync_interval,
            **self.traffic.tree(),
        }


@dataclass(frozen=True, kw_only=True)
class StepTraffic:
    """The bytes of a training step, and of the outer steps behind some of them."""

    step: TrafficReport
    """What a device sends in a step."""
    outer: tuple[OuterStepTraffic, ...]
    """Empty unless replicas train on their own."""

    @property
    def mean_bytes(self) -> Mapping[str, float]:
        """Bytes that a device sends by the step over a whole period, by column."""
        # An outer step is due once in its interval, so a step has that part of its
        # bytes.
        return {
            column: self.step.total(column)
            + sum(
                one.traffic.total(column) / one.sync.sync_interval for one in self.outer
            )
            for column in self.step.columns
        }


def count_step_traffic(layout: Layout) -> StepTraffic:
    """Compile the steps of a layout and count the bytes that a device sends in each.

    Nothing is trained or written.

    Args:
        layout: the task, its plan and mesh.
    """
    outer = (
        OuterStepTraffic(
            sync=sync,
            traffic=_count_traffic(
                layout, trace_outer_step(layout, sync), layout.ledger.sync_ledger(sync)
            ),
        )
        for sync in layout.outer_syncs
    )
    step = _count_traffic(layout, trace_train_step(layout), layout.ledger)
    return StepTraffic(step=step, outer=tuple(outer))


def _count_traffic(layout: Layout, traced: Any, ledger: Ledger) -> TrafficReport:
    lowered = traced.lower()
    mesh, size = dict(layout.mesh.shape), layout.plan.mesh.size
    # Plans say payloads; what a device sends of one depends on the size of its group.
    planned = ledger.payload_by_axes()
    # XLA may merge, split or remove collectives: the compiled program is counted apart
    # from the lowered one, which holds what was written.
    return build_traffic_report(
        mesh,
        compiled=read_collectives(lowered.compile().as_text() or "", mesh),
        stablehlo=read_stablehlo(lowered.compiler_ir("stablehlo"), mesh),
        formula={(*key, size(*key[1])): payload for key, payload in planned.items()},
    )
