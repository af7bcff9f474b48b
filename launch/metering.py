"""Metering: bytes of an experiment's step: planned, as written and as compiled."""

import jax

from jaxdist.collectives.hlo import read_collectives
from jaxdist.collectives.meter import Meter, metered
from jaxdist.input.registry import open_data
from jaxdist.launch.devices import Prepared
from jaxdist.launch.job import make_job
from jaxdist.launch.provenance import Resolved
from jaxdist.launch.samples import wanted
from jaxdist.partition.foreign import written
from jaxdist.train.layout import Layout
from jaxdist.train.program import trace_program


def layout_of(resolved: Resolved, prepared: Prepared) -> Layout:
    """Return what a configuration trains, laid out on devices.

    Raises:
        BadInput: it cannot run as asked.
    """
    config = resolved.config
    jax.config.update("jax_enable_x64", config.precision == "float64")
    train, _ = open_data(config.data, wanted(config))
    return make_job(config, prepared.plan, train).layout


def meter(layout: Layout) -> Meter:
    """Compile a training step and count the bytes that a device sends, three times.

    Nothing is trained or written.

    Args:
        layout: the task, its plan and mesh.
    """
    lowered = trace_program(layout).lower()
    compiled, mesh = lowered.compile(), dict(layout.mesh.shape)
    planned = layout.ledger.by_axes()
    size = layout.plan.mesh.size
    return metered(
        mesh,
        compiled=read_collectives(compiled.as_text() or "", mesh),
        stablehlo=written(lowered, mesh),
        formula={(*key, size(*key[1])): payload for key, payload in planned.items()},
    )
