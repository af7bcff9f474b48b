"""Configuration of an experiment: schema, overrides, provenance, plan files."""

from jaxdist.launch.config.experiment import CheckpointConfig, Experiment, RunConfig

__all__ = ["CheckpointConfig", "Experiment", "RunConfig"]
