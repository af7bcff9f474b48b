"""Planning at the edge: what was asked for, read, and the answer, laid out."""
