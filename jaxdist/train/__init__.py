"""Training: layouts, steps, the loop and checkpoints of a plan."""
