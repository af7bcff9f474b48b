"""Metering: bytes of an experiment's step: planned, as written and as compiled.

Where replicas train on their own, those of the steps that join them as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.meter import TrafficReport, metered
from jaxdist.input.registry import open_data
from jaxdist.launch.config.provenance import ResolvedConfig
from jaxdist.launch.devices.prepare import PreparedDevices
from jaxdist.launch.training.job.batch_spec import wanted
from jaxdist.launch.training.job.job import make_job
from jaxdist.partition.external_step import written
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.train.layout import Layout
from jaxdist.train.program import trace_program, trace_sync


@dataclass(frozen=True, kw_only=True)
class OuterStepTraffic:
    """The bytes of an outer step."""

    sync: OuterSync
    """What replicas average in it, and when."""
    meter: TrafficReport
    """What a device sends."""

    @property
    def title(self) -> str:
        """When it comes: `outer step, after step 50 of every 50`."""
        return f"outer step, after step {self.sync.after} of every {self.sync.every}"

    def tree(self) -> dict[str, Any]:
        """Return all of it as plain values, bytes."""
        return {
            "after": self.sync.after,
            "every": self.sync.every,
            **self.meter.tree(),
        }


def layout_of(resolved: ResolvedConfig, prepared: PreparedDevices) -> Layout:
    """Return what a configuration trains, laid out on devices.

    Raises:
        BadInput: it cannot run as asked.
    """
    config = resolved.config
    jax.config.update("jax_enable_x64", config.precision == "float64")
    train, _ = open_data(config.data, wanted(config))
    return make_job(config, prepared.plan, train).layout


def meter(layout: Layout) -> TrafficReport:
    """Compile a training step and count the bytes that a device sends, three times.

    Nothing is trained or written.

    Args:
        layout: the task, its plan and mesh.
    """
    return _metered(layout, trace_program(layout), layout.ledger)


def meter_outer(layout: Layout) -> tuple[OuterStepTraffic, ...]:
    """Count the bytes of the outer steps of a layout in the same way."""
    return tuple(
        OuterStepTraffic(
            sync=sync,
            meter=_metered(
                layout, trace_sync(layout, sync), layout.ledger.of_sync(sync)
            ),
        )
        for sync in layout.syncs
    )


def mean_bytes(
    step: TrafficReport, outer: Sequence[OuterStepTraffic]
) -> Mapping[str, float]:
    """Return what a device sends by the step over a whole period, in each column."""
    return {
        column: step.total(column)
        + sum(each.meter.total(column) / each.sync.every for each in outer)
        for column in step.columns
    }


def _metered(layout: Layout, traced: Any, ledger: Ledger) -> TrafficReport:
    lowered = traced.lower()
    compiled, mesh = lowered.compile(), dict(layout.mesh.shape)
    planned = ledger.by_axes()
    size = layout.plan.mesh.size
    return metered(
        mesh,
        compiled=read_collectives(compiled.as_text() or "", mesh),
        stablehlo=written(lowered, mesh),
        formula={(*key, size(*key[1])): payload for key, payload in planned.items()},
    )
