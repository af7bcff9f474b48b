"""Everything at the edge: command line, environment, signals, files of a run."""
