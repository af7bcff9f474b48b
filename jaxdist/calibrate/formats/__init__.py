"""Forms of measured rows, one a file: what a CSV says, and who predicts it."""
