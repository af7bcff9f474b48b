"""Configuration of an experiment: schema, overrides, provenance, plan files."""

from jaxdist.launch.config.experiment import (
    CheckpointConfig,
    Experiment,
    RunConfig,
    load_experiment,
)

__all__ = ["CheckpointConfig", "Experiment", "RunConfig", "load_experiment"]
