"""Predict what a plan takes: seconds and bytes, by term."""
