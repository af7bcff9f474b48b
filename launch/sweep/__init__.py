"""Sweeps: an experiment trained with many hyper-parameters, each trial a run."""
