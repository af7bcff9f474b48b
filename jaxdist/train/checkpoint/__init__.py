"""Checkpoints: written in the background, verified when read."""
