"""Networks, each a chain of named blocks, unaware of parallelism."""
