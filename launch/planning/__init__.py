"""Planning from the command line: layouts, stages, predictions, comparison."""
