"""Topologies, one a file: their cables, and the way of every message by arithmetic."""
