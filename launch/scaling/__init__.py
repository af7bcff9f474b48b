"""A scaling study: runs as data, their execution, reading and fit."""
