"""Clusters by name or from a file: machines as their sources describe them."""
