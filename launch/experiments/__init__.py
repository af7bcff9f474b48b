"""Experiments: one file each, with a function of its name that returns the settings."""
