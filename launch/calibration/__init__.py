"""Calibration from the command line: measure, fit, score."""
