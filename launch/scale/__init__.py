"""A scaling study: one training on more and more processes, measured and fitted."""
