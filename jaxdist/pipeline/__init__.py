"""Timelines of stages and microbatches, as tables that are run, counted and drawn."""
