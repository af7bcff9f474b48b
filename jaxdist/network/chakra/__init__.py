"""Chakra execution traces: their schema, their files, and what a trace holds."""
