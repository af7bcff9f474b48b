"""The tree of a study: all of it as plain values, for `--json` and `scale.json`."""

from typing import Any

from jaxdist.launch.scaling.fit import FIT_EQUATION, ScalingFit
from jaxdist.launch.scaling.results import LossDivergence, ScalingResult, SeriesFit
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement


def scaling_tree(result: ScalingResult) -> dict[str, Any]:
    """Return a result as plain values: seconds, bytes, shares of one."""
    return {
        "experiment": result.experiment,
        "scaling": result.grid.scaling,
        "place": {
            "name": result.place.name,
            "rate": result.place.link_rate,
            "cores": result.place.cores,
            "threads_a_process": 1,
        },
        "runs": [_run_tree(result, reading) for reading in result.readings],
        "failed": [
            {"run": one.cell.name, "why": one.why, "log": one.log}
            for one in result.lost
        ],
        "equation": FIT_EQUATION,
        "fits": [_fit_tree(one) for one in result.fits],
        "losses": [_divergence_tree(one) for one in result.drifts],
    }


def _run_tree(result: ScalingResult, reading: ScalingMeasurement) -> dict[str, Any]:
    cell, (low, high) = reading.run, reading.samples_per_s_range
    return {
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
        "losses": [list(point) for point in reading.loss_curve],
    }


def _fit_tree(one: SeriesFit) -> dict[str, Any]:
    named = {"reduce": one.reduce, "input": one.source, "points": len(one.points)}
    if not isinstance(one.found, ScalingFit):
        return {**named, "fitted": False, "why": one.found.reason}
    found = one.found
    return {
        **named,
        "fitted": True,
        "serial_s": found.serial,
        "parallel_s_a_sample": found.parallel,
        "communication_s_a_byte": found.communication,
        "residual_s": found.rms_residual,
        "furthest": found.max_relative_error,
        "points_to_spare": found.degrees_of_freedom,
        "shares": [
            {
                "processes": point.processes,
                "samples_a_process": point.each,
                **found.component_shares(point),
            }
            for point in one.points
        ],
    }


def _divergence_tree(one: LossDivergence) -> dict[str, Any]:
    return {
        "run": one.cell.name,
        "against": one.against.name,
        "first_step": one.first,
        "last_step": one.last,
    }
