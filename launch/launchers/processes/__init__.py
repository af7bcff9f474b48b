"""Processes of one machine: start, supervise, collect output, restart."""
