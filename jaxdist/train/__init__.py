"""Run a plan that was handed over: state, step, loop, checkpoints."""
