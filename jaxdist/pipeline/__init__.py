"""Timelines of stages and microbatches, as tables, and the program that runs them."""
