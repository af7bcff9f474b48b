"""Analysis of a step: audit, traffic, simulation, schedules drawn."""
