"""Ways to sum an array over ranks, as lists of steps: one way a file."""
