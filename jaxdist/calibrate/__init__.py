"""Fit the few free constants of predictions to measured rows, and score the others."""
