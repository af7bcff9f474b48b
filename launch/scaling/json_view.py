"""A study as JSON: all of it as plain values, for `--json` and `scale.json`."""

from typing import Any

from jaxdist.launch.scaling.fit import FIT_EQUATION, ScalingFit
from jaxdist.launch.scaling.results import ScalingResult


def scaling_tree(result: ScalingResult) -> dict[str, Any]:
    """Return a result as plain values: seconds, bytes, shares of one."""
    # `scale.json` is read back by the report of each run of the same experiment, and
    # keys are its format: seconds end in _s, percentiles are of rates.
    runs = []
    for reading in result.readings:
        cell, (low, high) = reading.run, reading.samples_per_s_range
        run = {
            "run": cell.name,
            "processes": cell.processes,
            "batch": cell.batch,
            "reduce": cell.reduction,
            "input": cell.input,
            "samples_per_s": reading.samples_per_s,
            "samples_per_s_p5": low,
            "samples_per_s_p95": high,
            "step_s": reading.step_s,
            "steady_steps": len(reading.step_seconds),
            "epoch_s": reading.epoch_s,
            "efficiency": result.efficiency(reading),
            "input_share": reading.input_wait_share,
            "bytes_sent": reading.sent_bytes,
            "other_work": reading.other_work,
            "losses": [list(point) for point in reading.loss_curve],
        }
        runs.append(run)

    fits = []
    for one in result.fits:
        fit: dict[str, Any] = {"reduce": one.reduce, "input": one.source}
        fit |= {"points": len(one.points), "fitted": isinstance(one.found, ScalingFit)}
        if not isinstance(one.found, ScalingFit):
            fits.append(fit | {"why": one.found.reason})
            continue
        fit |= {
            "serial_s": one.found.serial,
            "parallel_s_a_sample": one.found.parallel,
            "communication_s_a_byte": one.found.communication,
            "residual_s": one.found.rms_residual,
            "furthest": one.found.max_relative_error,
            # With no point to spare the residual is zero and says nothing of the fit.
            "points_to_spare": one.found.degrees_of_freedom,
            "shares": [
                {
                    "processes": point.processes,
                    "samples_a_process": point.each,
                    **one.found.component_shares(point),
                }
                for point in one.points
            ],
        }
        fits.append(fit)

    losses = [
        {
            "run": one.cell.name,
            "against": one.against.name,
            "first_step": one.first,
            "last_step": one.last,
        }
        for one in result.drifts
    ]
    failed = [
        {"run": one.cell.name, "why": one.why, "log": one.log} for one in result.lost
    ]
    return {
        "experiment": result.experiment,
        "scaling": result.grid.scaling,
        "place": {
            "name": result.place.name,
            "rate": result.place.link_rate,
            "cores": result.place.cores,
            "threads_a_process": 1,
        },
        "runs": runs,
        "failed": failed,
        "equation": FIT_EQUATION,
        "fits": fits,
        "losses": losses,
    }
