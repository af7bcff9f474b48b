"""The folder of a run: paths, lock, status, goodput, traces."""
