"""Checks of a machine, each with its remedy."""
