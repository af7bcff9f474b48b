"""Realise a plan's axes on devices."""
