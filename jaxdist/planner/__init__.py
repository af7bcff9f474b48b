"""Planner: chooses how a network is split, and says why."""
