"""The command line: entry point, parser, commands."""
