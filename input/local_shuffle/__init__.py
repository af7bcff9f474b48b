"""Partial local shuffling: samples a host stores, and those it exchanges."""
