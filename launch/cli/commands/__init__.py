"""Commands, one a file: `summary`, `add_arguments(parser)`, `run(args)`."""
